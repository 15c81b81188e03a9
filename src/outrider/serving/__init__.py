"""Serving models over HTTP.

app.py        the HTTP app; api/ has a file for each API
request.py    requests, and their progress and output
engine.py     asynchronous interface: requests in, results or events out
registry.py   the models: loaded on demand, unloaded when idle, within a memory budget
limits.py     limits, and admission of requests
scheduler.py  the thread of a model: fair queue and decoding session
"""
