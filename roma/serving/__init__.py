"""The embedded model server: TensorFlow Serving's REST API over SavedModels.

It stands in for `tensorflow_model_server` where its image is not to be had. A request passes
these rooms:

    server      the socket: bodies in, answers out, draining; the only asyncio but for workers
    workers     the threads that compute
    api         path -> call, error -> status code
    service     call + body -> JSON bytes
    inference   one predict, classify or regress call of one loaded model
    tfjson, examples, tensors, jsontext    TensorFlow Serving's JSON rules, without TensorFlow
    models, versions                       which versions are served, and how far each one is
    session                                the only module that imports TensorFlow

Importing this package imports none of it, so that it stays cheap.
"""
