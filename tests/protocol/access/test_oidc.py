"""Tokens of an identity provider: a real one over HTTP, real keys, and what must not get in."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import math
import time

import grpc
import jwt
import pytest
from aiohttp import ClientSession, web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from dispatcher.live.auth import access, oidc
from dispatcher.live.auth.access import Access, Credentials, Denied
from dispatcher.live.grpc import callers
from dispatcher.live.grpc.responses import respond
from roma.config.gateway import GatewayConfig
from roma.config.security import OidcConfig
from roma.domain.model import Priority
from tests.support.served import served
from tests.support.waiting import until

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
WEAK = rsa.generate_private_key(public_exponent=65537, key_size=1024)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ISSUER, AUDIENCE = "https://idp.example", "roma"

_AS_JWK = {
    rsa.RSAPublicKey: jwt.algorithms.RSAAlgorithm,
    ec.EllipticCurvePublicKey: jwt.algorithms.ECAlgorithm,
    ed25519.Ed25519PublicKey: jwt.algorithms.OKPAlgorithm,
}


def jwk(key, kid, **more):
    public = key.public_key()
    kind = next(a for cls, a in _AS_JWK.items() if isinstance(public, cls))
    return {**json.loads(kind.to_jwk(public)), "kid": kid, **more}


def signed(key=RSA, kid="r", algorithm="RS256", headers=(), without=(), **claims):
    now = time.time()
    content = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now} | claims
    content = {name: value for name, value in content.items() if name not in without}
    named = {} if kid is None else {"kid": kid}
    return jwt.encode(content, key, algorithm, headers=named | dict(headers))


def config(**more):
    return OidcConfig.model_validate(
        {"issuer": ISSUER, "audience": AUDIENCE, "models": "*", **more}
    )


def provider(*keys, **more):
    found = oidc.Provider(config(**more))
    found.take(oidc.usable({"keys": list(keys) or [jwk(RSA, "r"), jwk(EC, "e"), jwk(ED, "d")]}))
    return found


def admitted(provider, token, model="m", now=0.0, **more):
    return Access(None, provider, **more).admit(Credentials(f"Bearer {token}"), model, now)


def refused(provider, token, model="m"):
    with pytest.raises(Denied) as caught:
        admitted(provider, token, model)
    denied = caught.value
    for part in token.split("."):
        assert len(part) < 8 or part not in f"{denied} {denied.headers} {denied.__cause__}"
    return denied


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [
        (RSA, "r", "RS256"),
        (RSA, "r", "RS512"),
        (RSA, "r", "PS256"),
        (EC, "e", "ES256"),
        (ED, "d", "EdDSA"),
    ],
)
def test_a_token_that_the_provider_signed_is_let_in(key, kid, algorithm):
    grant = admitted(provider(), signed(key, kid, algorithm))
    assert (grant.name, grant.priority) == ("ada", Priority.INTERACTIVE)


@pytest.mark.parametrize(
    ("listed", "kid", "is_admitted"),
    [
        (["r"], None, True),  # OpenID Connect Core §10.1: ids are for several keys
        ([None], None, True),
        ([None], "r", True),
        ([None, "e"], None, True),
        (["r", "e"], None, False),
        (["r"], "new", False),
        ([None, "e"], "new", False),
    ],
)
def test_an_only_key_needs_no_id(listed, kid, is_admitted):
    keys = [jwk(EC if name == "e" else RSA, name) for name in listed]
    for key in keys:
        if key["kid"] is None:
            del key["kid"]
    found = provider(*keys)
    if is_admitted:
        assert admitted(found, signed(kid=kid)).name == "ada"
    else:
        assert "a key that is not known" in str(refused(found, signed(kid=kid)))
        assert found.unknown.is_set()


def encoded(content):
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()


def bracketed(length):
    """As many open brackets as a token of this length has room for."""
    return base64.urlsafe_b64encode(b"[" * (length * 3 // 4)).decode()


def with_the_public_key_as_secret():
    """The classic: HS256, keyed by what everybody knows."""
    pem = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 600}
    text = f"{encoded({'alg': 'HS256', 'kid': 'r'})}.{encoded(claims)}"
    mac = hmac.new(pem, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def unsigned():
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": time.time() + 600}
    return f"{encoded({'alg': 'none', 'kid': 'r'})}.{encoded(claims)}."


def changed():
    head, body, signature = signed().split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    return f"{head}.{encoded(claims | {'sub': 'eve'})}.{signature}"


@pytest.mark.parametrize(
    "token",
    [
        signed(OTHER),  # another key under a known id
        signed(OTHER, headers={"jwk": jwk(OTHER, "r")}),  # and it brings that key along
        signed(kid="unknown"),
        signed(EC, "r", "ES256"),
        signed(iss="https://evil.example"),
        signed(iss=ISSUER + "/"),
        signed(aud="another"),
        signed(aud=[]),
        signed(exp=time.time() - 60),
        signed(nbf=time.time() + 600),
        signed(exp="soon"),
        signed(headers={"crit": ["b64"]}),
        *(signed(without=[name]) for name in ("iss", "aud", "exp", "sub")),
        *(signed(sub=nobody) for nobody in ("", " ")),  # all of them would share one rate
        with_the_public_key_as_secret(),
        unsigned(),
        changed(),
        "a.b.c",
        "...",
        "x",
        encoded({"alg": "RS256"}) * 3,
        # Dates that are none, or that no clock reaches.
        *(
            signed(**{claim: value})
            for claim in ("exp", "nbf", "iat")
            for value in (10**400, math.inf, "soon", [1], {})
        ),
        *(signed(exp=value) for value in (-1, -math.inf, math.nan, 1e300, "9999999999", True)),
        f"{bracketed(8000)}.e30.x",  # a header that no parser may fall over
    ],
)
def test_any_other_token_hears_401(token):
    denied = refused(provider(), token)
    assert denied.status == 401
    assert "WWW-Authenticate" in denied.headers


def test_a_date_may_have_a_fraction():
    assert admitted(provider(), signed(exp=time.time() + 600.5, nbf=0.5)).name == "ada"


def test_a_token_for_several_audiences_is_for_us_too():
    assert admitted(provider(), signed(aud=["other", AUDIENCE])).name == "ada"


def test_a_key_is_used_as_it_says_alone():
    only = provider(jwk(RSA, "r", alg="PS256"))
    assert refused(only, signed()).status == 401
    admitted(only, signed(algorithm="PS256"))


def test_keys_that_cannot_be_trusted_are_left_out():
    private = jwk(RSA, "p")
    usable = oidc.usable(
        {
            "keys": [
                jwk(RSA, "r"),
                jwk(WEAK, "weak"),
                jwk(OTHER, "enc", use="enc"),
                jwk(OTHER, "hs", alg="HS256"),
                {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"},
                {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
                {"kty": "RSA", "n": private["n"], "e": "AQAB", "kid": 7},  # nobody could name it
                {"kty": ["RSA"], "kid": "odd"},
                "no key",
            ]
        }
    )
    assert list(usable) == ["r"]
    for odd in (None, [], {}, {"keys": {}}):
        with pytest.raises(ValueError, match="no key set"):
            oidc.usable(odd)


@pytest.mark.parametrize(
    ("claims", "models", "fine"),
    [
        ({"roma": ["m", "n"]}, (), True),
        ({"roma": "n m"}, (), True),
        ({"roma": ["*"]}, (), True),
        ({"roma": ["n"]}, "*", False),  # the claim narrows
        ({"roma": []}, "*", False),
        ({"roma": {"m": 1}}, "*", False),
        ({"roma": 7}, "*", False),
        ({}, ("m",), True),
        ({}, ("n",), False),
        ({}, (), False),
    ],
)
def test_a_claim_says_which_models(claims, models, fine):
    found = provider(models_claim="roma", models=models)
    if fine:
        admitted(found, signed(**claims))
    else:
        assert refused(found, signed(**claims)).status == 403


def test_the_limits_are_each_subject_s_not_each_token_s():
    a = Access(None, provider(rate=1, burst=2))

    def call(token):
        a.admit(Credentials(f"Bearer {token}"), "m", 0.0)

    call(signed(jti="1"))
    call(signed(jti="2"))
    with pytest.raises(Denied) as caught:
        call(signed(jti="3"))
    assert caught.value.status == 429
    call(signed(sub="eve"))


def test_a_token_is_verified_once_and_ends_when_it_says(monkeypatch):
    calls = []
    real = jwt.decode
    monkeypatch.setattr(oidc.jwt, "decode", lambda *a, **o: calls.append(1) or real(*a, **o))
    wall = [time.time()]
    a = Access(None, provider(), wall=lambda: wall[0])
    who = Credentials(f"Bearer {signed(exp=wall[0] + 100)}")
    for _ in range(3):
        a.admit(who, "m", 0.0)
    assert len(calls) == 1
    wall[0] += 100 + oidc.LEEWAY
    with pytest.raises(Denied, match="have expired"):
        a.admit(who, "m", 0.0)


def test_a_key_that_is_gone_takes_its_tokens_with_it():
    found, token = provider(jwk(RSA, "r")), signed()
    admitted(found, token)
    found.take(oidc.usable({"keys": [jwk(EC, "e")]}))
    assert refused(found, token).status == 401
    assert found.unknown.is_set()  # it is looked for


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(oidc, "MOST_TOKENS", 3)
    found = provider(jwk(EC, "e"))
    for i in range(10):
        found.caller(signed(EC, "e", "ES256", sub=f"s{i}"))
    assert len(found._verified) == len(found._rate_limits) == 3


def test_a_subject_that_calls_keeps_its_limits_however_many_others_come(monkeypatch):
    monkeypatch.setattr(oidc, "MOST_TOKENS", 3)
    found = provider(jwk(EC, "e"), concurrency=1)
    token = signed(EC, "e", "ES256", sub="busy")
    for i in range(10):
        found.caller(token)
        found.caller(signed(EC, "e", "ES256", sub=f"s{i}"))
    renewed = found.caller(signed(EC, "e", "ES256", sub="busy", jti="2"))
    assert renewed.rate_limit is found.caller(token).rate_limit


async def test_a_subject_that_is_no_text_hears_its_refusal_over_grpc():
    found = provider(models=("elsewhere",))

    async def call(_, context):
        return await respond(context, callers.refused(refused(found, signed(sub="\ud800"))))

    handler = grpc.unary_unary_rpc_method_handler(call)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"m": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary("/s/m")(b"", timeout=10)
    finally:
        await server.stop(None)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.details() == "? may not call model m"


class Issuer:
    """An identity provider on a real socket."""

    def __init__(self):
        self.keys, self.status, self.asked = [jwk(RSA, "r")], 200, []
        self.document = {}
        self.body = None
        self.gate = None

    @contextlib.asynccontextmanager
    async def serving(self):
        routes = {
            "/.well-known/openid-configuration": self._discovery,
            "/jwks": self._jwks,
            "/elsewhere": self._elsewhere,
        }
        async with served(*(web.get(*route) for route in routes.items())) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self

    async def _discovery(self, request):
        return web.json_response(
            {"issuer": self.url, "jwks_uri": f"{self.url}/jwks"} | self.document
        )

    async def _jwks(self, request):
        self.asked.append(request.path)
        if self.gate is not None:
            await self.gate.wait()
        if self.body is not None:
            return web.Response(body=self.body)
        return web.json_response({"keys": self.keys}, status=self.status)

    async def _elsewhere(self, request):
        raise web.HTTPFound("/jwks")


async def until_admitted(a, token, limit=20):
    async with asyncio.timeout(limit):
        while True:
            with contextlib.suppress(Denied):
                return a.admit(Credentials(f"Bearer {token}"), "m", 0.0)
            await asyncio.sleep(0.01)


async def test_keys_come_by_discovery_and_new_ones_when_a_token_names_them(monkeypatch):
    monkeypatch.setattr(oidc, "SOONEST", 0.05)
    async with Issuer().serving() as issuer:
        section = GatewayConfig(oidc=config(issuer=issuer.url))
        async with access.opened(section) as a:
            await until_admitted(a, signed(iss=issuer.url))
            asked = len(issuer.asked)
            issuer.keys = [jwk(RSA, "r"), jwk(EC, "e")]
            assert len(issuer.asked) == asked  # nothing asked for more
            await until_admitted(a, signed(EC, "e", "ES256", iss=issuer.url))
            issuer.status = 500
            for _ in range(50):  # a flood of unknown keys is no flood of questions
                with pytest.raises(Denied):
                    a.admit(Credentials(f"Bearer {signed(kid='x', iss=issuer.url)}"), "m", 0.0)
            await until_admitted(a, signed(iss=issuer.url))  # the old keys hold
            assert len(issuer.asked) < asked + 10


async def test_the_first_token_finds_the_keys_of_a_slow_provider(monkeypatch):
    monkeypatch.setattr(oidc, "LIMIT", 60.0)
    async with Issuer().serving() as issuer, contextlib.AsyncExitStack() as stack:
        issuer.gate = asyncio.Event()
        opening = access.opened(GatewayConfig(oidc=config(issuer=issuer.url)))
        starting = asyncio.create_task(stack.enter_async_context(opening))
        await until(lambda: issuer.asked)
        issuer.gate.set()
        a = await starting
        a.admit(Credentials(f"Bearer {signed(iss=issuer.url)}"), "m", 0.0)


async def test_a_silent_provider_does_not_keep_clients_with_keys_waiting(monkeypatch):
    monkeypatch.setattr(oidc, "LIMIT", 0.05)
    async with Issuer().serving() as issuer, contextlib.AsyncExitStack() as stack:
        issuer.gate = asyncio.Event()
        opening = access.opened(GatewayConfig(oidc=config(issuer=issuer.url)))
        a = await stack.enter_async_context(opening)
        with pytest.raises(Denied, match="a key that is not known"):
            a.admit(Credentials(f"Bearer {signed(iss=issuer.url)}"), "m", 0.0)
        issuer.gate.set()


async def test_a_provider_that_is_away_is_said_once_and_asked_again(monkeypatch, caplog):
    monkeypatch.setattr(oidc, "SOONEST", 0.02)
    async with Issuer().serving() as issuer:
        issuer.status = 503
        async with access.opened(GatewayConfig(oidc=config(issuer=issuer.url))) as a:
            await until(lambda: len(issuer.asked) >= 3)
            issuer.status = 200
            await until_admitted(a, signed(iss=issuer.url))
    said = [r for r in caplog.records if "no keys from the identity provider" in r.getMessage()]
    assert len(said) == 1
    assert "status 503" in said[0].getMessage()


@pytest.mark.parametrize(
    ("document", "path", "body", "message"),
    [
        ({"issuer": "https://evil.example"}, None, None, "speaks of another issuer"),
        ({}, "/elsewhere", None, "status 302"),
        ({}, None, b"no json", "line 1 column 1"),
        ({}, None, b"[]", "no key set"),
        ({}, None, b'{"keys": []}', "no key that could sign"),
        ({}, None, b" " * (oidc.MOST_BYTES + 1), "larger than"),
    ],
)
async def test_a_provider_that_answers_oddly_gives_no_keys(document, path, body, message):
    async with Issuer().serving() as issuer, ClientSession() as session:
        issuer.document, issuer.body = document, body
        url = None if path is None else issuer.url + path
        with pytest.raises(ValueError, match=message):
            await oidc.fetch(config(issuer=issuer.url, jwks_url=url), session)


async def test_without_the_extra_the_key_and_the_remedy_are_named(monkeypatch):
    import sys

    from roma.domain.errors import ConfigError

    monkeypatch.delitem(sys.modules, "dispatcher.live.auth.oidc")
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(ConfigError, match=r"gateway\.oidc = https://idp\.example: jwt is missing"):
        async with access.opened(GatewayConfig(oidc=config())):
            pass
