"""A server of the Python SDK, over HTTP and for both eras, with the tools, resources and
prompts that the official suites call by name. It runs no tasks.

It prints its URL, and ends when its standard input does.
"""

import asyncio
import base64
import os
import socket
import sys
import threading

from pydantic import BaseModel, Field

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import (
    AudioContent,
    Completion,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
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


def form(message, field, kind="string"):
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt, tokens):
    messages = [{"role": "user", "content": {"type": "text", "text": prompt}}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": tokens}}


def require(questions, state=None):
    return InputRequiredResult.model_validate(
        {"resultType": "input_required", "inputRequests": questions, "requestState": state}
    )


def asks(ctx, questions, state=None):
    """Returns the answers, or None and what asks for them."""
    got = ctx.input_responses or {}
    if any(key not in got for key in questions):
        return None, require(questions, state)
    return got, None


@server.tool()
def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
    got, ask = asks(ctx, {"user_name": form("What is your name?", "name")})
    return ask or f"Hello, {got['user_name'].content['name']}!"


@server.tool()
def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
    got, ask = asks(ctx, {"capital_question": sampling("What is the capital of France?", 100)})
    return ask or got["capital_question"].content.text


@server.tool()
def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
    got, ask = asks(ctx, {"client_roots": {"method": "roots/list", "params": {}}})
    return ask or str(got["client_roots"].roots)


@server.tool()
def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
    got, ask = asks(ctx, {"confirm": form("Please confirm", "ok", "boolean")}, "kept")
    return ask or ("state-ok" if ctx.request_state == "kept" else "the state is lost")


@server.tool()
def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
    got, ask = asks(ctx, {
        "user_name": form("What is your name?", "name"),
        "greeting": sampling("Generate a greeting", 50),
        "client_roots": {"method": "roots/list", "params": {}},
    }, "kept")
    return ask or str(got)


@server.tool()
def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
    if ctx.request_state is None:
        return require({"step1": form("Step 1: What is your name?", "name")}, "first")
    if ctx.request_state == "first":
        return require({"step2": form("Step 2: What is your favorite color?", "color")}, "second")
    return str(ctx.input_responses)


class User(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


@server.tool(structured_output=False)
async def test_elicitation(message: str, ctx: Context):
    answer = await ctx.elicit(message, User)
    return f"User response: action={answer.action}"


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
