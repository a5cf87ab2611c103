// A server of the TypeScript SDK, over HTTP and for both eras, with the tools, resources and prompts
// that the official suites call by name. It asks clients of 2026-07-28 alone.
//
//	node everything.mjs
//
// It prints its URL, and ends when its standard input does.

import { createServer } from 'node:http';
import { Server, createMcpHandler } from '@modelcontextprotocol/server';

const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==';
const wav = 'UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=';
const text = (s) => ({ type: 'text', text: s });
const image = { type: 'image', data: png, mimeType: 'image/png' };
const embedded = (uri) => ({ type: 'resource', resource: { uri, mimeType: 'text/plain', text: 'An embedded resource.' } });
const nothing = { type: 'object', properties: {} };

const schema2020 = {
	$schema: 'https://json-schema.org/draft/2020-12/schema', type: 'object',
	$defs: { address: { $anchor: 'addressDef', type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } } },
	properties: {
		name: { type: 'string' }, address: { $ref: '#/$defs/address' }, contactMethod: { type: 'string', enum: ['phone', 'email'] },
		phone: { type: 'string' }, email: { type: 'string' },
	},
	allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
	if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
	then: { required: ['phone'] }, else: { required: ['email'] },
	additionalProperties: false,
};

const ask = {
	user_name: { method: 'elicitation/create', params: {
		message: 'What is your name?', requestedSchema: { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] },
	} },
	confirm: { method: 'elicitation/create', params: {
		message: 'Please confirm', requestedSchema: { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] },
	} },
	step1: { method: 'elicitation/create', params: {
		message: 'Step 1: What is your name?', requestedSchema: { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] },
	} },
	step2: { method: 'elicitation/create', params: {
		message: 'Step 2: What is your favorite color?',
		requestedSchema: { type: 'object', properties: { color: { type: 'string' } }, required: ['color'] },
	} },
	capital_question: { method: 'sampling/createMessage', params: {
		messages: [{ role: 'user', content: text('What is the capital of France?') }], maxTokens: 100,
	} },
	greeting: { method: 'sampling/createMessage', params: {
		messages: [{ role: 'user', content: text('Generate a greeting') }], maxTokens: 50,
	} },
	client_roots: { method: 'roots/list', params: {} },
};

// asks returns a tool that asks these questions, and then answers.
const asks = (keys, answer, requestState) => (ctx) => {
	const got = ctx.mcpReq.inputResponses ?? {};
	if (keys.some((key) => !got[key])) {
		return { resultType: 'input_required', inputRequests: Object.fromEntries(keys.map((key) => [key, ask[key]])), requestState };
	}
	return [text(answer(got, ctx))];
};

const tools = {
	test_input_required_result_elicitation: asks(['user_name'], (got) => `Hello, ${got.user_name.content?.name}!`),
	test_input_required_result_sampling: asks(['capital_question'], (got) => got.capital_question.content.text),
	test_input_required_result_list_roots: asks(['client_roots'], (got) => JSON.stringify(got.client_roots)),
	test_input_required_result_request_state: asks(['confirm'],
		(_, ctx) => (ctx.mcpReq.requestState() === 'kept' ? 'state-ok' : 'the state is lost'), 'kept'),
	test_input_required_result_multiple_inputs: asks(['user_name', 'greeting', 'client_roots'], (got) => JSON.stringify(got), 'kept'),
	test_input_required_result_multi_round: (ctx) => {
		if (ctx.mcpReq.requestState() === undefined) {
			return { resultType: 'input_required', inputRequests: { step1: ask.step1 }, requestState: 'first' };
		}
		if (ctx.mcpReq.requestState() === 'first') {
			return { resultType: 'input_required', inputRequests: { step2: ask.step2 }, requestState: 'second' };
		}
		return [text(JSON.stringify(ctx.mcpReq.inputResponses))];
	},
	test_simple_text: () => [text('This is a simple text response for testing.')],
	test_image_content: () => [image],
	test_audio_content: () => [{ type: 'audio', data: wav, mimeType: 'audio/wav' }],
	test_embedded_resource: () => [embedded('test://embedded-resource')],
	test_multiple_content_types: () => [text('Multiple content types test:'), image, embedded('test://mixed-content-resource')],
	test_tool_with_progress: async (ctx) => {
		const token = ctx.mcpReq._meta?.progressToken;
		for (const progress of [0, 50, 100]) {
			if (token !== undefined) {
				await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken: token, progress, total: 100 } });
			}
			await new Promise((done) => setTimeout(done, 50));
		}
		return [text('done')];
	},
	json_schema_2020_12_tool: () => [text('ok')],
};

function serve() {
	const s = new Server({ name: 'typescript-everything', version: '1.0.0' }, {
		capabilities: { tools: {}, resources: {}, prompts: {}, completions: {} },
	});
	s.setRequestHandler('tools/list', async () => ({
		tools: [...Object.keys(tools), 'test_error_handling'].map((name) => ({
			name, description: name, inputSchema: name === 'json_schema_2020_12_tool' ? schema2020 : nothing,
		})),
	}));
	s.setRequestHandler('tools/call', async (request, ctx) => {
		const { name } = request.params;
		if (name === 'test_error_handling') {
			return { isError: true, content: [text('This tool intentionally returns an error for testing')] };
		}
		const result = await tools[name](ctx);
		return Array.isArray(result) ? { content: result } : result;
	});
	s.setRequestHandler('resources/list', async () => ({
		resources: [
			{ uri: 'test://static-text', name: 'text', mimeType: 'text/plain' },
			{ uri: 'test://static-binary', name: 'binary', mimeType: 'image/png' },
		],
	}));
	s.setRequestHandler('resources/templates/list', async () => ({
		resourceTemplates: [{ uriTemplate: 'test://template/{id}/data', name: 'template', mimeType: 'application/json' }],
	}));
	s.setRequestHandler('resources/read', async (request) => {
		const { uri } = request.params;
		const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1];
		if (uri === 'test://static-text') {
			return { contents: [{ uri, mimeType: 'text/plain', text: 'This is the content of the static text resource.' }] };
		}
		if (uri === 'test://static-binary') {
			return { contents: [{ uri, mimeType: 'image/png', blob: png }] };
		}
		if (id) {
			return { contents: [{ uri, mimeType: 'application/json', text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) }] };
		}
		throw Object.assign(new Error(`Resource not found: ${uri}`), { code: -32602, data: { uri } });
	});
	s.setRequestHandler('prompts/list', async () => ({
		prompts: [
			{ name: 'test_simple_prompt', description: 'A prompt.' },
			{
				name: 'test_prompt_with_arguments', description: 'A prompt.',
				arguments: [{ name: 'arg1', required: true }, { name: 'arg2', required: true }],
			},
			{ name: 'test_prompt_with_embedded_resource', description: 'A prompt.', arguments: [{ name: 'resourceUri', required: true }] },
			{ name: 'test_prompt_with_image', description: 'A prompt.' },
		],
	}));
	s.setRequestHandler('prompts/get', async (request) => {
		const { name, arguments: args } = request.params;
		const user = (...content) => ({ messages: content.map((c) => ({ role: 'user', content: c })) });
		return {
			test_simple_prompt: () => user(text('This is a simple prompt for testing.')),
			test_prompt_with_arguments: () => user(text(`Prompt with arguments: arg1='${args.arg1}', arg2='${args.arg2}'`)),
			test_prompt_with_embedded_resource: () => user(embedded(args.resourceUri), text('Please process the embedded resource above.')),
			test_prompt_with_image: () => user(image, text('Please analyze the image above.')),
		}[name]();
	});
	s.setRequestHandler('completion/complete', async () => ({ completion: { values: ['paris', 'park', 'party'], total: 3, hasMore: false } }));
	return s;
}

const handler = createMcpHandler(serve);
const http = createServer(async (req, res) => {
	const body = [];
	for await (const chunk of req) body.push(chunk);
	const abort = new AbortController();
	res.on('close', () => abort.abort());
	const local = /^(127\.0\.0\.1|localhost)(:\d+)?$/;
	const origin = req.headers.origin;
	if (!local.test(req.headers.host) || (origin && !local.test(origin.replace(/^https?:\/\//, '')))) {
		res.writeHead(403).end();
		return;
	}
	const response = await handler.fetch(new Request(`http://${req.headers.host}${req.url}`, {
		method: req.method, headers: req.headers, body: body.length ? Buffer.concat(body) : undefined, signal: abort.signal,
	}));
	res.writeHead(response.status, Object.fromEntries(response.headers));
	if (response.body) {
		for await (const chunk of response.body) res.write(chunk);
	}
	res.end();
});
http.listen(0, '127.0.0.1', () => console.log(`http://127.0.0.1:${http.address().port}/mcp`));
process.stdin.on('end', () => process.exit(0)).resume();
