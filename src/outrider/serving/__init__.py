"""A model folder as a service: one thread a model drives a session, an HTTP app feeds it.

    engine.py      what the app asks: texts in, results or a stream of news out
    shelf.py       the models: loaded when asked for, dropped when idle, within a budget of bytes
    driver.py      the thread of one model and its session
    fair_queue.py  whose turn it is
    admission.py   who is let in, and who is told at once to come back later
    app.py         the HTTP app; one file a family of routes beside it

Everything above the session is plain Python; the light install and the extra `serve` are enough.
"""
