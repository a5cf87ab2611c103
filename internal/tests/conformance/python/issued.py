"""Has the official Python client come in at a host that issues tokens itself: issued.py URL USER PASSWORD.

It reads a.txt, has its access token refreshed, and reads it again. It prints what it got as one JSON object.
"""
import asyncio
import html
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

target, user, password = sys.argv[1:4]


class Kept:
    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


class Stays(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


kept, back = Kept(), {}


async def allow(url):
    """Is the browser of a user who fills in the consent page."""
    page = urllib.request.urlopen(url).read().decode()
    form = {n: html.unescape(v) for n, v in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', page)}
    form |= {"grant": "asked", "user": user, "password": password, "decision": "allow"}
    at = urllib.parse.urlsplit(url)
    origin = f"{at.scheme}://{at.netloc}"
    request = urllib.request.Request(
        origin + "/auth/authorize", urllib.parse.urlencode(form).encode(), {"Origin": origin}
    )
    try:
        urllib.request.build_opener(Stays).open(request)
    except urllib.error.HTTPError as answer:
        back.update(urllib.parse.parse_qsl(urllib.parse.urlsplit(answer.headers["Location"]).query))


async def callback():
    return AuthorizationCodeResult(code=back["code"], state=back["state"], iss=back["iss"])


async def main():
    provider = OAuthClientProvider(
        target,
        OAuthClientMetadata(client_name="python-client", redirect_uris=["https://callback.test/done"],
                            token_endpoint_auth_method="none"),
        kept, allow, callback,
    )
    got = {}
    async with httpx2.AsyncClient(auth=provider, timeout=30) as http:
        async with Client(streamable_http_client(target, http_client=http)) as client:
            async def read():
                return (await client.call_tool("file_read", {"path": "a.txt"})).content[0].text

            got["read"], got["first"] = await read(), kept.tokens.access_token
            provider.context.token_expiry_time = 1  # as if its time had come
            got["again"], got["second"] = await read(), kept.tokens.access_token
    got["scope"] = kept.tokens.scope
    print(json.dumps(got))


asyncio.run(main())
