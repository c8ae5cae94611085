"""The embedded model server: TensorFlow Serving's APIs and the Open Inference Protocol.

It serves SavedModels, and stands in for `tensorflow_model_server` where its image is not to be had.
A request passes these rooms:

    server                  its life: bind, load, serve, drain
    rest, grpc_server       the sockets: bytes in, bytes out, deadlines, draining
    health                  the gRPC health protocol
    workers                 the threads that compute
    route, rpc, messages    what a request is to the sockets: bytes -> answer
    api, service            TensorFlow Serving's REST: path -> call, call + body -> JSON
    predict_grpc            TensorFlow Serving's gRPC: message -> message
    predict_messages        its inference messages, computed by one model
    reload_grpc             its HandleReloadConfigRequest
    oip, oip_rest, oip_grpc the Open Inference Protocol, and its two encodings
    inference               one call of one loaded model, whatever the protocol
    tfjson, examples, tensors, jsontext    TensorFlow Serving's JSON rules, without TensorFlow
    tensorproto, oip_tensors               one tensor of the other protocols
    models, versions                       which versions are served, and how far each one is
    warmup                                 requests that a version answers before it is AVAILABLE
    metrics                                what was answered, for Prometheus
    session                                the only module that runs TensorFlow

Importing this package imports none of it, so that it stays cheap.
"""
