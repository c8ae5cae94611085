"""Callers of a gateway, in the file of keys that it reads."""

import json

from roma.security import api_keys


def keys_file(folder, callers):
    """Write a file that says by token what its caller may; return its path.

    That is every model, unless some are named.
    """
    entries = {
        token.split("_")[1]: {"hash": api_keys.hashed(token), "models": "*", **caller}
        for token, caller in callers.items()
    }
    file = folder / "keys.yaml"
    file.write_text(json.dumps({"keys": entries}))
    file.chmod(0o600)
    return file
