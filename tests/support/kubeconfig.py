"""A kubeconfig for an API server without TLS."""


def kubeconfig_of(url):
    """Return the content of a kubeconfig with one context."""
    return {
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
