package clients

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
)

// Step is one tool call that a Model requests.
type Step struct {
	Tool string
	Args func(given []string) map[string]any // of what the model was given for the steps before
}

// Call is a Step whose arguments are known.
type Call struct {
	ID   string
	Tool string
	Args map[string]any
}

// Model serves a model's API on loopback and follows a script: it requests the steps one after the other, and then
// reports that it is done. It serves Anthropic's Messages and OpenAI's Responses, both as event streams, and
// OpenAI's Chat Completions.
type Model struct {
	URL string

	steps  []Step
	server *httptest.Server

	mu    sync.Mutex // guards what follows
	calls []Call     // asked for so far
	given []string   // the results, in the order of the steps
	wrong []string   // what a client sent that the API would not accept
}

// NewModel starts a model. Close must be called.
func NewModel(steps []Step) *Model {
	m := &Model{steps: steps}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", m.messages)
	mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, map[string]any{"input_tokens": 1})
	})
	mux.HandleFunc("POST /v1/responses", m.responses)
	mux.HandleFunc("POST /v1/chat/completions", m.completions)
	m.server = httptest.NewServer(mux)
	m.URL = m.server.URL
	return m
}

// Close stops the server.
func (m *Model) Close() {
	m.server.CloseClientConnections()
	m.server.Close()
}

// Given returns what the model received for each step so far.
func (m *Model) Given() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.given...)
}

// Wrong returns the requests that were not valid in the API.
func (m *Model) Wrong() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string(nil), m.wrong...)
}

// Next returns the call that the model requests now; false if it requests none. It returns the same call until Give
// is called.
func (m *Model) Next() (Call, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.next()
}

func (m *Model) next() (Call, bool) {
	at := len(m.given)
	if at == len(m.steps) {
		return Call{}, false
	}
	if at == len(m.calls) {
		step := m.steps[at]
		m.calls = append(m.calls, Call{ID: fmt.Sprintf("call_%d", at), Tool: step.Tool, Args: step.Args(m.given)})
	}
	return m.calls[at], true
}

// Give passes the result of the call that Next returned to the model.
func (m *Model) Give(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.given = append(m.given, text)
}

// offered is a tool in a request: the name by which a client's model calls it,
// and for OpenAI's Responses the namespace that the name is in.
type offered struct{ namespace, name string }

// turn reads the results in a request, and returns the call to answer it with and the name by which the client
// knows its tool; false if there is none.
//
// A request without tools is one of the client's own, for instance for a title. Results are distinguished by the
// ids of their calls, because each request repeats the whole conversation.
func (m *Model) turn(tools []offered, results map[string]string) (Call, offered, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(tools) == 0 {
		return Call{}, offered{}, false
	}
	for len(m.given) < len(m.calls) {
		text, ok := results[m.calls[len(m.given)].ID]
		if !ok {
			break
		}
		m.given = append(m.given, text)
	}
	for {
		call, ok := m.next()
		if !ok {
			return Call{}, offered{}, false
		}
		for _, t := range tools {
			if t.name == call.Tool || strings.HasSuffix(t.name, "__"+call.Tool) {
				return call, t, true
			}
		}
		m.wrong = append(m.wrong, fmt.Sprintf("the client offers its model no tool %s among %d", call.Tool, len(tools)))
		m.given = append(m.given, "")
	}
}

// read decodes a request, or answers it with an error.
func (m *Model) read(w http.ResponseWriter, r *http.Request, to any) bool {
	err := json.NewDecoder(r.Body).Decode(to)
	if err != nil {
		m.mu.Lock()
		m.wrong = append(m.wrong, fmt.Sprintf("%s: %v", r.URL.Path, err))
		m.mu.Unlock()
		http.Error(
			w,
			`{"error":{"type":"invalid_request_error","message":"this is no request"}}`,
			http.StatusBadRequest,
		)
	}
	return err == nil
}

// texts joins the pieces of a result, which is a string or a list of parts.
func texts(raw json.RawMessage) string {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return one
	}
	var parts []json.RawMessage
	if json.Unmarshal(raw, &parts) != nil {
		return string(raw)
	}
	var all []string
	for _, p := range parts {
		var of struct{ Type, Text string }
		if json.Unmarshal(p, &of) == nil && of.Text == "" && of.Type != "" && of.Type != "text" {
			of.Text = string(p) // such as a picture
		}
		all = append(all, of.Text)
	}
	return strings.Join(all, "\n")
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

// event is one server-sent event; its type is in its data too.
func event(w http.ResponseWriter, kind string, data map[string]any) {
	data["type"] = kind
	b, err := json.Marshal(data)
	if err != nil {
		panic(err) // we made data
	}
	fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, b)
}

type object = map[string]any

// messages is Anthropic's Messages API.
func (m *Model) messages(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Stream   bool
		Tools    []struct{ Name string }
		Messages []struct {
			Role    string
			Content json.RawMessage
		}
	}
	if !m.read(w, r, &in) {
		return
	}
	var tools []offered
	for _, t := range in.Tools {
		tools = append(tools, offered{name: t.Name})
	}
	results := map[string]string{}
	for _, message := range in.Messages {
		var blocks []struct {
			Type    string
			ID      string `json:"tool_use_id"`
			Content json.RawMessage
		}
		_ = json.Unmarshal(message.Content, &blocks) // a string has no results
		for _, b := range blocks {
			if b.Type == "tool_result" {
				results[b.ID] = texts(b.Content)
			}
		}
	}
	call, tool, ok := m.turn(tools, results)
	block, delta, stop := object{"type": "text", "text": ""}, object{"type": "text_delta", "text": "Done."}, "end_turn"
	whole := object{"type": "text", "text": "Done."}
	if ok {
		args, err := json.Marshal(call.Args)
		if err != nil {
			panic(err) // we made the arguments
		}
		block = object{"type": "tool_use", "id": call.ID, "name": tool.name, "input": object{}}
		delta, stop = object{"type": "input_json_delta", "partial_json": string(args)}, "tool_use"
		whole = object{"type": "tool_use", "id": call.ID, "name": tool.name, "input": call.Args}
	}
	message := object{
		"id": "msg_" + call.ID, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5",
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil,
		"usage": object{"input_tokens": 1, "output_tokens": 1},
	}
	if !in.Stream {
		message["content"], message["stop_reason"] = []any{whole}, stop
		writeJSON(w, message)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event(w, "message_start", object{"message": message})
	event(w, "content_block_start", object{"index": 0, "content_block": block})
	event(w, "content_block_delta", object{"index": 0, "delta": delta})
	event(w, "content_block_stop", object{"index": 0})
	event(w, "message_delta", object{
		"delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 1},
	})
	event(w, "message_stop", object{})
}

// responses is OpenAI's Responses API.
func (m *Model) responses(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Tools []struct {
			Type, Name string
			Tools      []struct{ Name string } // of a namespace
		}
		Input []struct {
			Type   string
			ID     string `json:"call_id"`
			Output json.RawMessage
		}
	}
	if !m.read(w, r, &in) {
		return
	}
	var tools []offered
	for _, t := range in.Tools {
		if t.Type == "namespace" {
			for _, inner := range t.Tools {
				tools = append(tools, offered{t.Name, inner.Name})
			}
			continue
		}
		tools = append(tools, offered{name: t.Name})
	}
	results := map[string]string{}
	for _, item := range in.Input {
		if item.Type == "function_call_output" {
			results[item.ID] = texts(item.Output)
		}
	}
	call, tool, ok := m.turn(tools, results)
	item := object{
		"type": "message", "role": "assistant", "id": "msg_done",
		"content": []any{object{"type": "output_text", "text": "Done.", "annotations": []any{}}},
	}
	if ok {
		args, err := json.Marshal(call.Args)
		if err != nil {
			panic(err) // we made the arguments
		}
		item = object{
			"type": "function_call", "id": "fc_" + call.ID, "call_id": call.ID, "name": tool.name,
			"arguments": string(args),
		}
		if tool.namespace != "" {
			item["namespace"] = tool.namespace
		}
	}
	response := object{"id": "resp_" + call.ID, "object": "response", "status": "in_progress", "output": []any{}}
	w.Header().Set("Content-Type", "text/event-stream")
	event(w, "response.created", object{"sequence_number": 0, "response": response})
	event(w, "response.output_item.added", object{"sequence_number": 1, "output_index": 0, "item": item})
	event(w, "response.output_item.done", object{"sequence_number": 2, "output_index": 0, "item": item})
	response["status"], response["output"] = "completed", []any{item}
	response["usage"] = object{
		"input_tokens": 1, "input_tokens_details": object{"cached_tokens": 0},
		"output_tokens": 1, "output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": 2,
	}
	event(w, "response.completed", object{"sequence_number": 3, "response": response})
}

// completions is OpenAI's Chat Completions API, without streaming.
func (m *Model) completions(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Stream   bool
		Tools    []struct{ Function struct{ Name string } }
		Messages []struct {
			Role    string
			ID      string `json:"tool_call_id"`
			Content json.RawMessage
		}
	}
	if !m.read(w, r, &in) {
		return
	}
	if in.Stream {
		http.Error(w, `{"error":{"message":"streaming is not served here"}}`, http.StatusBadRequest)
		return
	}
	var tools []offered
	for _, t := range in.Tools {
		tools = append(tools, offered{name: t.Function.Name})
	}
	results := map[string]string{}
	for _, message := range in.Messages {
		if message.Role == "tool" {
			results[message.ID] = texts(message.Content)
		}
	}
	call, tool, ok := m.turn(tools, results)
	message, stop := object{"role": "assistant", "content": "Done."}, "stop"
	if ok {
		args, err := json.Marshal(call.Args)
		if err != nil {
			panic(err) // we made the arguments
		}
		function := object{"name": tool.name, "arguments": string(args)}
		message = object{
			"role": "assistant", "content": nil,
			"tool_calls": []any{object{"id": call.ID, "type": "function", "function": function}},
		}
		stop = "tool_calls"
	}
	writeJSON(w, object{
		"id": "chatcmpl_" + call.ID, "object": "chat.completion", "created": 0, "model": "mock",
		"choices": []any{object{"index": 0, "message": message, "finish_reason": stop}},
		"usage":   object{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
	})
}
