"""Checks of the way to a SuperLink: port, certificates, clock, versions, key, nodes. The first problem ends them."""

import http.client
import socket
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from cryptography import x509

from . import control_api
from .finding import Finding
from .link import Link

TIMEOUT = 10.0  # seconds for each answer
EXPIRES_SOON = 30  # days
LOOPBACK = "127.0.0.1"  # where the SuperLink's own SuperExec reaches it, whatever --host says
# Flower refuses what a SuperNode signed more than 5 s in the future or 305 s ago (flwr 1.42, node_auth.py).
AHEAD, BEHIND = 5.0, 300.0
_UNKNOWN_AUTHORITY = {2, 18, 19, 20, 21}  # OpenSSL's verify codes
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = {62, 64}


def check_link(link: Link, private_key: Path | None, needed: int) -> Iterator[Finding]:
    """Yield what is found on the way to the SuperLink, from near to far.

    Parameters
    ----------
    link
        The SuperLink.
    private_key
        A SuperNode's key, whose registration is looked up.
    needed
        How many SuperNodes are to be online.
    """
    for check in (_port, _certificate, _answers):
        findings = list(check(link))
        yield from findings
        if any(finding.state == "problem" for finding in findings):
            yield Finding("SuperLink", "open", "what comes after this was not looked at")
            return
    try:
        nodes, objection = control_api.list_nodes(link)
    except control_api.ControlApiError as error:
        yield _refused(str(error))
        return
    yield _versions(objection)
    if private_key:
        yield _key(private_key, nodes)
    yield _enough(nodes, needed)


def _port(link: Link) -> Iterator[Finding]:
    try:
        socket.create_connection((link.host, link.port), TIMEOUT).close()
    except socket.gaierror:
        advice = "Correct the name, or use the server's IP address (its certificate must name it)."
        yield Finding("port", "problem", f"no machine is called {link.host}", advice)
    except ConnectionRefusedError:
        advice = (
            "Start the SuperLink there; for other machines it needs --host 0.0.0.0, without which it listens on "
            "127.0.0.1 alone."
        )
        yield Finding("port", "problem", f"{link.host} refuses port {link.port}: nothing listens there", advice)
    except OSError as error:
        advice = "Look whether the server is up, and whether a firewall or cloud rule lets TCP through to this port."
        yield Finding("port", "problem", f"no way to {link.address}: {error}", advice)
    else:
        yield Finding("port", "ok", f"{link.address} can be reached")


def _certificate(link: Link) -> Iterator[Finding]:
    if link.insecure:
        yield Finding(
            "certificate",
            "warning",
            "no TLS: models travel in the open, and anybody can join",
            "Use it on one machine.",
        )
        return
    try:
        context = trusting(link.root_certificates)
    except (OSError, ssl.SSLError) as error:
        advice = "Name the authority's certificate, ca.crt, which whoever runs the SuperLink hands out."
        yield Finding("certificate", "problem", f"{link.root_certificates} cannot be read: {error}", advice)
        return
    try:
        certificate = _shown(link, context)
    except ssl.SSLCertVerificationError as error:
        yield _untrusted(link, error)
    except (ssl.SSLError, OSError) as error:
        advice = "If it was started with --insecure, use --insecure here and at the SuperNodes; better: give it keys."
        yield Finding("certificate", "problem", f"the SuperLink speaks no TLS ({error})", advice)
    else:
        left = (certificate.not_valid_after_utc - datetime.now(UTC)).days
        names = _names(certificate)
        text = f"from the trusted authority, for {', '.join(names)}, {left} days left"
        if left < EXPIRES_SOON:
            yield Finding("certificate", "warning", text, "Make a new server certificate before it ends.")
        elif LOOPBACK not in names:
            advice = (
                f"Name {LOOPBACK} in it too: a SuperLink that starts the ServerApp itself reaches itself there, and "
                "without it runs stay pending. With --isolation=process this does not matter."
            )
            yield Finding("certificate", "warning", text, advice)
        else:
            yield Finding("certificate", "ok", text)


def _untrusted(link: Link, error: ssl.SSLCertVerificationError) -> Finding:
    names, clock = "unknown names", ""
    try:
        certificate = _shown(link, _unchecking())
        names = ", ".join(_names(certificate))
        clock = f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to {certificate.not_valid_after_utc:%Y-%m-%d %H:%M}"
    except (OSError, ValueError, x509.ExtensionNotFound):
        pass
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    if error.verify_code in _OTHER_NAME:
        text = f"the server's certificate is for {names}, not for {link.host}"
        advice = f"Use one of these names as its address, or make a server certificate that names {link.host}."
    elif error.verify_code in _UNKNOWN_AUTHORITY:
        text = f"{link.root_certificates or 'this machine'} does not vouch for the server's certificate ({names})"
        advice = (
            "Get ca.crt anew from whoever runs the SuperLink and name it with --root-certificates. If it is the right "
            "one, this is not your server: do not connect."
        )
    elif error.verify_code == _EXPIRED:
        text = f"the certificate was valid {clock}; here it is {now} UTC"
        advice = (
            "Set this machine's clock if it is wrong, else make a new server certificate and restart the SuperLink."
        )
    elif error.verify_code == _NOT_YET_VALID:
        text = f"the certificate is valid {clock}; here it is {now} UTC"
        advice = "Set the clock of this machine or of the one that made the certificate."
    else:
        text, advice = (
            f"the certificate is refused: {error.verify_message}",
            "Make a new one with examples/devices/keys.sh.",
        )
    return Finding("certificate", "problem", text, advice)


def _answers(link: Link) -> Iterator[Finding]:
    connection: http.client.HTTPConnection
    if link.insecure:
        connection = http.client.HTTPConnection(link.host, link.port, timeout=TIMEOUT)
    else:
        context = trusting(link.root_certificates)
        connection = http.client.HTTPSConnection(link.host, link.port, timeout=TIMEOUT, context=context)
    try:
        connection.request("GET", "/health")
        reply = connection.getresponse()
        status, date = reply.status, reply.headers.get("Date")
    except (http.client.HTTPException, OSError) as error:
        advice = "If the SuperLink has certificates, leave --insecure out. Else look whether it is a SuperLink at all."
        yield Finding("SuperLink", "problem", f"no HTTP answer: {type(error).__name__}: {error}", advice)
        return
    finally:
        connection.close()
    if status != http.HTTPStatus.OK:
        advice = "Look at the address: Flower 1.42 serves all on one HTTP port, 8000 unless told otherwise."
        yield Finding("SuperLink", "problem", f"GET /health gives {status}, not 200", advice)
        return
    yield Finding("SuperLink", "ok", "is healthy")
    if date:
        yield _clock((parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds())


def _clock(server_minus_here: float) -> Finding:
    ahead = -server_minus_here
    words = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    advice = "Set both clocks by NTP (timedatectl set-ntp true): Flower refuses keys of machines whose clocks differ."
    if ahead > AHEAD or -ahead > BEHIND:
        return Finding("clock", "problem", f"this clock is {words}", advice)
    if abs(ahead) > AHEAD:
        return Finding("clock", "warning", f"this clock is {words}", advice)
    return Finding("clock", "ok", "agrees with the server's within seconds")


def _refused(text: str) -> Finding:
    if text.startswith(("401", "403")):
        return Finding("nodes", "open", f"the SuperLink lists its nodes to accounts only ({text})", "Use `flwr login`.")
    advice = "Compare the Flower versions on both machines; use the same."
    return Finding("versions", "problem", f"the SuperLink does not answer this Flower: {text}", advice)


def _versions(objection: str) -> Finding:
    if objection:
        return Finding("versions", "problem", objection, "Install the same Flower version on both machines.")
    return Finding("versions", "ok", "the SuperLink accepts this Flower version")


def _key(private_key: Path, nodes: Sequence[control_api.Node]) -> Finding:
    try:
        public_key = control_api.public_key_of(private_key)
    except OSError as error:
        return Finding("key", "problem", f"{private_key}: {error.strerror}", "Name the SuperNode's private key file.")
    except ValueError as error:
        return Finding("key", "problem", str(error), "Make one: ssh-keygen -t ecdsa -b 384 -N '' -f KEY")
    mine = [node for node in nodes if node.public_key == public_key and node.status != "unregistered"]
    if not mine:
        advice = f"Whoever runs the SuperLink: flwr supernode register {private_key.name}.pub CONNECTION --name NAME"
        return Finding("key", "problem", f"{private_key} is not registered at the SuperLink", advice)
    node = mine[0]
    called = f" as {node.name}" if node.name else ""
    if node.status == "online":
        advice = "Good if its SuperNode runs. If that was just killed, the SuperLink takes it back after 60 s."
        return Finding("key", "ok", f"registered{called}, and online now", advice)
    if not node.name:
        advice = "Register it with --name, so that its results are kept under a name that lasts."
        return Finding("key", "warning", "registered without a name", advice)
    return Finding("key", "ok", f"registered{called}")


def _enough(nodes: Sequence[control_api.Node], needed: int) -> Finding:
    online = [node for node in nodes if node.status == "online"]
    away = [node.name or "a nameless one" for node in nodes if node.status in ("offline", "registered")]
    text = f"{len(online)} online, {needed} needed" + (f"; not online: {', '.join(away)}" if away else "")
    if len(online) < needed:
        advice = "Start SuperNodes, or lower the app's least number; a run waits for them, then gives up."
        return Finding("nodes", "warning", text, advice)
    return Finding("nodes", "ok", text)


def trusting(root_certificates: Path | None) -> ssl.SSLContext:
    """What Flower trusts: certificates from this authority, by default from the machine's own, for the right host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if root_certificates:
        context.load_verify_locations(cafile=root_certificates)
    else:
        context.load_default_certs()
    return context


def _unchecking() -> ssl.SSLContext:
    """For a look at a certificate that is not trusted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _shown(link: Link, context: ssl.SSLContext) -> x509.Certificate:
    """The certificate that the server shows."""
    with (
        socket.create_connection((link.host, link.port), TIMEOUT) as raw,
        context.wrap_socket(raw, server_hostname=link.host) as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    if shown is None:
        raise ValueError("the server shows no certificate")
    return x509.load_der_x509_certificate(shown)


def _names(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
