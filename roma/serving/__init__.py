"""The embedded model server: TensorFlow Serving's APIs and the Open Inference Protocol.

It serves SavedModels, as a substitute for `tensorflow_model_server` where its image is unavailable.
A request passes these modules:

    server                  life cycle: bind, load, serve, drain
    rest, grpc_server       the sockets: bytes in, bytes out, deadlines, draining
    health                  the gRPC health protocol
    workers                 the threads that compute
    route, rpc, messages    interface of the protocols to the sockets: bytes -> answer
    api, service            TensorFlow Serving's REST: path -> call, call + body -> JSON
    predict_grpc            TensorFlow Serving's gRPC: message -> message
    predict_messages        its inference messages, computed by one model
    reload_grpc             its HandleReloadConfigRequest
    oip, oip_rest, oip_grpc the Open Inference Protocol, and its two encodings
    inference               one call of one loaded model, whatever the protocol
    examples, and `roma.tensors`           TensorFlow Serving's JSON rules, without TensorFlow
    tensorproto, oip_tensors               one tensor of the other protocols
    models, versions                       the versions served, and the state of each
    warmup                                 requests that a version answers before it is AVAILABLE
    own_cpu                                CPU accounting of its cgroup, for a supervisor
    metrics                                counts of answers, for Prometheus
    session                                the only module that runs TensorFlow

Importing this package imports none of them, so that it stays cheap.
"""
