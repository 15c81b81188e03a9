"""Serving models over HTTP.

app.py        the HTTP app; api/ has a file for each API
translation.py what the APIs call: routes, detection, HTML, alternatives
routes.py     models between two languages, directly or over a third
languages.py  normal codes and names of languages, and detection
html.py       texts and markup of HTML
docs_page.py  the page of all routes
key_file.py   keys, rates and use, in SQLite
request.py    requests, their progress and output, and refusals
engine.py     asynchronous interface: requests in, results or events out
registry.py   the models: loaded on demand, unloaded when idle, within a memory budget
limits.py     limits, and admission of requests
scheduler.py  the thread of a model: fair queue and decoding session
run.py        the server process, and replicas with Ray
log.py        log and metrics
"""
