package tool

import (
	"encoding/json"
	"fmt"
)

// Result is what a handler gives back. A tool fills Content or Structured (see Typed), a
// resource Content, a prompt Messages, a completion Completion; a relay sets
// Raw alone.
type Result struct {
	Content []Content `json:"content,omitempty"`
	// any JSON value; checked against the output schema before it leaves
	Structured any `json:"structured,omitempty"`
	// of a tool whose product is text: what the model is told beside it; see Typed
	Facts   string                     `json:"facts,omitempty"`
	IsError bool                       `json:"isError,omitempty"` // the model reads Content as what went wrong
	Meta    map[string]json.RawMessage `json:"meta,omitempty"`

	Messages    []Message   `json:"messages,omitempty"`
	Description string      `json:"description,omitempty"`
	Completion  *Completion `json:"completion,omitempty"`

	Raw   json.RawMessage `json:"raw,omitempty"`   // a relay's whole result object: never trimmed, never re-typed
	Input *Input          `json:"input,omitempty"` // more is wanted; Peer.Ask makes one, relays set it themselves
}

// Input says what a run that ended early still wants.
type Input struct {
	Questions []Question `json:"questions,omitempty"`
	State     []byte     `json:"state,omitempty"`
	Here      bool       `json:"here,omitempty"` // the retry must reach this node: an upstream call is open
	// Forget are keys of answers that a relay has passed on, so that they are not kept for
	// the later rounds of the call.
	Forget []string `json:"forget,omitempty"`
}

// Content is one block of a result.
type Content struct {
	Type        string          `json:"type"` // text, image, audio, resource or resource_link
	Text        string          `json:"text,omitempty"`
	MIME        string          `json:"mimeType,omitempty"`
	URI         string          `json:"uri,omitempty"`
	Name        string          `json:"name,omitempty"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Size        int64           `json:"size,omitempty"`
	Data        []byte          `json:"data,omitzero"` // empty and not nil is an empty blob
	Annotations *Annotations    `json:"annotations,omitempty"`
	Meta        json.RawMessage `json:"meta,omitempty"`
	Raw         json.RawMessage `json:"raw,omitempty"` // a relayed block, verbatim
}

// Annotations tell a client for whom a block is and how much it matters.
type Annotations struct {
	Audience     []string `json:"audience,omitempty"` // user, assistant
	Priority     *float64 `json:"priority,omitempty"` // 0 to 1
	LastModified string   `json:"lastModified,omitempty"`
}

// Message is one message of a prompt.
type Message struct {
	Role    string  `json:"role"` // user or assistant
	Content Content `json:"content"`
}

// Completion is what a completion handler proposes, at most 100 values.
type Completion struct {
	Values []string `json:"values"`
	Total  int      `json:"total,omitempty"`
	More   bool     `json:"hasMore,omitempty"`
}

// Text is a block of text.
func Text(s string) Content { return Content{Type: "text", Text: s} }

// Image is a picture; data is not yet base64.
func Image(mime string, data []byte) Content {
	return Content{Type: "image", MIME: mime, Data: data}
}

// Audio is a sound; data is not yet base64.
func Audio(mime string, data []byte) Content {
	return Content{Type: "audio", MIME: mime, Data: data}
}

// TextResource is a resource's text, embedded.
func TextResource(uri, mime, text string) Content {
	return Content{Type: "resource", URI: uri, MIME: mime, Text: text}
}

// BlobResource is a resource's bytes, embedded; data is not yet base64. Empty
// data is still a blob.
func BlobResource(uri, mime string, data []byte) Content {
	if data == nil {
		data = []byte{}
	}
	return Content{Type: "resource", URI: uri, MIME: mime, Data: data}
}

// Link points to a resource that can be read later.
func Link(uri, name, mime string) Content {
	return Content{Type: "resource_link", URI: uri, Name: name, MIME: mime}
}

// A Refusal is an answer, not an accident: the tool worked, and the answer is
// no. The model reads "code: message" and on the next line what to do next.
type Refusal struct {
	Code    Code
	Message string
	Next    string // "" when there is nothing to say
}

func (e *Refusal) Error() string { return string(e.Code) + ": " + e.Message }

// Text is what the model reads.
func (e *Refusal) Text() string {
	s := e.Message
	if e.Code != "" {
		s = string(e.Code) + ": " + s
	}
	if e.Next != "" {
		s += "\n" + e.Next
	}
	return s
}

// Refuse makes a Refusal without a next step.
func Refuse(code Code, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Message: fmt.Sprintf(format, args...)}
}

// A WireError is for the client program, not for the model: it becomes a
// JSON-RPC error.
type WireError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

func (e *WireError) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }
