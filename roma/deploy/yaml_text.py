"""YAML that people read: in our order of keys, without anchors."""

import yaml


class _Plain(yaml.SafeDumper):
    """YAML dumper without anchors: repeated lists are written out, since people read them."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def text(data: object) -> str:
    """Return plain data as a YAML document."""
    return yaml.dump(data, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100)
