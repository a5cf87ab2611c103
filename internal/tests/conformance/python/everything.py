"""A server of the Python SDK, over HTTP and for both eras, with the tools, resources and
prompts that the official suites call by name. It asks its client nothing.

It prints its URL, and ends when its standard input does.
"""

import asyncio
import base64
import os
import socket
import sys
import threading

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
)

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA="

server = MCPServer("python-everything", version="1.0.0")


def text(s):
    return TextContent(type="text", text=s)


def image():
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def embedded(uri):
    contents = TextResourceContents(uri=uri, mime_type="text/plain", text="An embedded resource.")
    return EmbeddedResource(type="resource", resource=contents)


@server.tool(structured_output=False)
def test_simple_text():
    return "This is a simple text response for testing."


@server.tool(structured_output=False)
def test_image_content():
    return [image()]


@server.tool(structured_output=False)
def test_audio_content():
    return [AudioContent(type="audio", data=WAV, mime_type="audio/wav")]


@server.tool(structured_output=False)
def test_embedded_resource():
    return [embedded("test://embedded-resource")]


@server.tool(structured_output=False)
def test_multiple_content_types():
    return [text("Multiple content types test:"), image(), embedded("test://mixed-content-resource")]


@server.tool(structured_output=False)
async def test_tool_with_progress(ctx: Context):
    for progress in (0, 50, 100):
        await ctx.report_progress(progress, 100)
        await asyncio.sleep(0.05)
    return "done"


@server.tool(structured_output=False)
def test_error_handling():
    raise ValueError("This tool intentionally returns an error for testing")


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    return base64.b64decode(PNG)


@server.resource("test://template/{id}/data", mime_type="application/json")
def template(id: str) -> str:
    return '{"id":"%s","templateTest":true,"data":"Data for ID: %s"}' % (id, id)


@server.prompt()
def test_simple_prompt():
    return "This is a simple prompt for testing."


@server.prompt()
def test_prompt_with_arguments(arg1: str, arg2: str):
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


def message(content):
    return {"role": "user", "content": content}


@server.prompt()
def test_prompt_with_embedded_resource(resourceUri: str):
    return [message(embedded(resourceUri)), message(text("Please process the embedded resource above."))]


@server.prompt()
def test_prompt_with_image():
    return [message(image()), message(text("Please analyze the image above."))]


@server.completion()
async def complete(ref, argument, context):
    return Completion(values=["paris", "park", "party"], total=3, has_more=False)


def main():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(f"http://127.0.0.1:{port}/mcp", flush=True)
    asyncio.run(server.run_streamable_http_async(port=port))


main()
