"""Is the Flower process of this container healthy? `python health.py PORT` ends with 0 if it is."""

import ssl
import sys
import urllib.request


def is_healthy(port: int) -> bool:
    """Ask `GET /health`, in the open, then by TLS; it is this very container, so its certificate is not checked."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for scheme in ("http", "https"):
        try:
            with urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/health", timeout=2, context=trusting) as reply:
                return bool(reply.status == 200)
        except OSError:
            continue
    return False


if __name__ == "__main__":
    sys.exit(not is_healthy(int(sys.argv[1])))
