"""Whether the hub can be asked at all. Its client tries every file several times, for most of a minute in all."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request

HUB_SECONDS = 10.0
DEFAULT_ENDPOINT = "https://huggingface.co"


def why_only_the_cache() -> str | None:
    """Ask the hub once; where it can't be reached, this process goes by its cache alone, and this is why.

    Any answer will do, a refusal too: then its client has more to say.
    """
    from huggingface_hub import constants

    if constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set"
    endpoint = os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    try:
        with urllib.request.urlopen(urllib.request.Request(endpoint, method="HEAD"), timeout=HUB_SECONDS):
            return None
    except urllib.error.HTTPError:
        return None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, ssl.SSLError):  # the client may know another certificate store
            return None
        constants.HF_HUB_OFFLINE = True
        os.environ["HF_HUB_OFFLINE"] = "1"  # for what is imported later, and processes that are started
        return f"{endpoint} does not answer ({getattr(cause, 'strerror', None) or cause}; tried once)"
