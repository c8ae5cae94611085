"""`roma render kubernetes`: a deployment as objects of the Kubernetes API, for kustomize.

render    the files of base and overlays
pods      the Deployments of the models
control   the gateway and the supervisor
rights    service accounts, with each right where it is used
network   Services and NetworkPolicies
common    names, labels and what all pods have
"""
