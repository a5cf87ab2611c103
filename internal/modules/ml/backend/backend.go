// Package backend asks language models of several servers for answers, and measures how each of them does.
//
// A Pool has the servers in the order of preference. It limits how many requests each gets at once and divides them
// among callers, keeps answers, tries another server where one fails, and leaves a failing one alone for a while.
// Nothing of what a server sends is trusted: its time, size and numbers have limits here.
package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Kinds of servers.
const (
	OpenAI = "openai" // any server with the chat completions of OpenAI: LM Studio, vLLM, gateways
	Llama  = "llama"  // llama-server of llama.cpp
	Ollama = "ollama"
)

// Limits of one answer.
const (
	maxText   = 1 << 20  // bytes of text
	maxStream = 32 << 20 // bytes of a whole response
	maxLine   = 1 << 20  // bytes of one line of a response
	// tokenBytes is the largest length of a token: an answer that is longer than its limit of tokens times this is cut.
	tokenBytes = 64
	maxTokens  = 50_000_000 // in the usage that a server reports
	maxProbs   = 100_000    // log-probabilities that are kept
	maxAlts    = 20         // alternatives to one token
)

// Message is one message of a conversation.
type Message struct {
	Role string `json:"role"` // system, user or assistant
	Text string `json:"content"`
}

// Request is a question to a model.
type Request struct {
	Model       string          `json:"model,omitempty"` // "" means the server's default
	Messages    []Message       `json:"messages"`
	Temperature *float64        `json:"temperature,omitempty"` // nil means the server's default
	TopP        *float64        `json:"top_p,omitempty"`
	MaxTokens   int             `json:"max_tokens,omitempty"` // 0 means no limit but that of the text
	Stop        []string        `json:"stop,omitempty"`       // the answer ends before the first of them
	Seed        *int64          `json:"seed,omitempty"`
	Logprobs    bool            `json:"logprobs,omitempty"`
	Top         int             `json:"top_logprobs,omitempty"` // alternatives to each token
	Schema      json.RawMessage `json:"schema,omitempty"`       // of the answer, which the server is asked to obey
}

// Response is the answer of a model.
type Response struct {
	Text    string
	Finish  string // stop or length, or another word of the server
	Backend string
	Model   string // that answered, as the server names it
	Usage   Usage
	Tokens  []Token // with their log-probabilities, if they were requested and the server has them
	Took    time.Duration
	First   time.Duration // until the first piece of text
	Cached  bool
}

// Usage counts the tokens of a request.
type Usage struct {
	In  int
	Out int
	// Estimated means that the server gave no counts, or impossible ones: these are a quarter of the bytes.
	Estimated bool
}

// Token is a piece of an answer with its log-probability.
type Token struct {
	Text    string        `json:"token"`
	Logprob float64       `json:"logprob"`
	Top     []Alternative `json:"top,omitempty"`
}

// Alternative is a token that could have stood in the place of another one, or that one itself.
type Alternative struct {
	Text    string  `json:"token"`
	Logprob float64 `json:"logprob"`
}

// Failure is why a server gave no answer.
type Failure struct {
	Backend string
	Reason  string
	Status  int           // of HTTP; 0 if there was none
	After   time.Duration // the server asked to be left alone this long
	// Again means that another attempt may succeed, Request that the request is wrong for every server.
	Again, Request bool
}

func (f *Failure) Error() string {
	if f.Backend == "" {
		return f.Reason
	}
	return fmt.Sprintf("backend %s: %s", f.Backend, f.Reason)
}

// server is one server of some kind. It is safe for concurrent use.
type server interface {
	// generate asks for an answer and calls text, which may be nil, with each piece. An error is a
	// *Failure, or that of ctx.
	generate(ctx context.Context, r *Request, text func(string)) (Response, error)
	// models lists the models that the server has.
	models(ctx context.Context) ([]Model, error)
}

// Model is a model that a server has.
type Model struct {
	Name   string
	Loaded bool  // into memory, where the server says so
	Bytes  int64 // of memory; 0 means unknown
}

// answer gathers what a server streams, within the limits.
type answer struct {
	r       *Request
	text    func(string)
	b       strings.Builder
	begin   time.Time
	res     Response
	ended   bool // the text is complete: what follows is not wanted
	given   bool // the server reported a usage
	thought int  // bytes of reasoning, which is not part of the answer
}

func newAnswer(r *Request, text func(string)) *answer {
	return &answer{r: r, text: text, begin: time.Now()}
}

// appendText takes a piece of text. It ends the answer at a stop word or a limit, also where the server does not.
func (a *answer) appendText(piece string) {
	if piece == "" || a.ended {
		return
	}
	if a.b.Len() == 0 {
		a.res.First = time.Since(a.begin)
	}
	from := a.b.Len()
	a.b.WriteString(piece)
	all := a.b.String()
	cut, finish := -1, ""
	for _, stop := range a.r.Stop {
		near := max(0, from-len(stop)+1)
		if i := strings.Index(all[near:], stop); stop != "" && i >= 0 && (cut < 0 || near+i < cut) {
			cut, finish = near+i, "stop"
		}
	}
	limit := maxText
	if n := a.r.MaxTokens; n > 0 && n < maxText/tokenBytes {
		limit = n * tokenBytes
	}
	if cut < 0 && len(all) > limit {
		cut, finish = limit, "length"
	}
	if cut >= 0 {
		a.res.Finish, a.ended = finish, true
		a.b.Reset()
		a.b.WriteString(strings.ToValidUTF8(all[:cut], ""))
		piece = all[min(from, cut):cut]
	}
	if a.text != nil && piece != "" {
		a.text(piece)
	}
}

// tokens takes log-probabilities.
func (a *answer) tokens(list []Token) {
	if !a.r.Logprobs || a.ended {
		return
	}
	for i := range list {
		list[i].Top = list[i].Top[:min(len(list[i].Top), a.r.Top, maxAlts)]
	}
	a.res.Tokens = append(a.res.Tokens, list[:min(len(list), maxProbs-len(a.res.Tokens))]...)
}

// usage takes the counts of the server.
func (a *answer) usage(in, out int) {
	a.given = true
	a.res.Usage = Usage{In: in, Out: out}
}

// done returns the complete answer.
func (a *answer) done() Response {
	a.res.Text = a.b.String()
	u := a.res.Usage
	wrong := u.In <= 0 || u.Out < 0 || u.In > maxTokens || u.Out > maxTokens || u.Out == 0 && a.res.Text != "" ||
		a.r.MaxTokens > 0 && u.Out > 2*a.r.MaxTokens
	if !a.given || wrong {
		in := 0
		for _, m := range a.r.Messages {
			in += len(m.Text)
		}
		a.res.Usage = Usage{In: (in + 3) / 4, Out: (len(a.res.Text) + a.thought + 3) / 4, Estimated: true}
	}
	if a.res.Finish == "" {
		a.res.Finish = "stop"
	}
	a.res.Took = time.Since(a.begin)
	return a.res
}
