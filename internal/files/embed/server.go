package embed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
)

// Limits of a server.
const (
	batch       = 32              // texts in one request
	requestTime = 2 * time.Minute // of one request
	maxResponse = 64 << 20        // bytes
	maxInput    = 24 << 10        // bytes of one text; models read less
	attempts    = 3               // of a request that fails for a passing reason
	firstWait   = 200 * time.Millisecond
)

// server asks a server with OpenAI's embeddings.
type server struct {
	Settings
	fill   func(map[string]string) (map[string]secret.Text, error)
	client *http.Client
}

func newServer(s Settings, fill func(map[string]string) (map[string]secret.Text, error)) *server {
	s.URL = strings.TrimRight(s.URL, "/")
	return &server{s, fill, &http.Client{
		Timeout: requestTime,
		// it would get the key
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Space implements Embedder.
func (s *server) Space() (name string, dims int) {
	name = "openai/" + s.Model
	if s.Query != "" || s.Document != "" {
		name += fmt.Sprintf(" (%q, %q)", s.Query, s.Document)
	}
	return name, s.Dimensions
}

// Embed implements Embedder.
func (s *server) Embed(ctx context.Context, texts []string, query bool) ([][]float32, error) {
	prefix := s.Document
	if query {
		prefix = s.Query
	}
	var all [][]float32
	for from := 0; from < len(texts); from += batch {
		part := make([]string, 0, batch)
		for _, t := range texts[from:min(from+batch, len(texts))] {
			if len(t) > maxInput {
				t = strings.ToValidUTF8(t[:maxInput], "")
			}
			if t = prefix + t; t == "" {
				t = " " // servers refuse an empty text
			}
			part = append(part, t)
		}
		got, err := s.request(ctx, part)
		if err != nil {
			return nil, fmt.Errorf("embeddings of %s: %w", s.Model, err)
		}
		all = append(all, got...)
	}
	return all, nil
}

// passing is an error after which another attempt may succeed.
type passing struct{ error }

func (s *server) request(ctx context.Context, texts []string) (all [][]float32, err error) {
	err = retry(ctx, func() error {
		b, err := s.post(ctx, "/embeddings", map[string]any{"model": s.Model, "input": texts})
		if err == nil {
			all, err = s.vectors(b, len(texts))
		}
		return err
	})
	return all, err
}

// retry calls f again while its error is passing.
func retry(ctx context.Context, f func() error) error {
	wait := firstWait
	for try := 1; ; try++ {
		err := f()
		if _, again := errors.AsType[passing](err); !again || try == attempts || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		wait *= 2
	}
}

// post sends one request and returns the body of its response.
func (s *server) post(ctx context.Context, path string, in any) ([]byte, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/json")
	if err := s.authorize(q); err != nil {
		return nil, err
	}
	res, err := s.client.Do(q)
	if err != nil {
		return nil, passing{err}
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	switch {
	case err != nil:
		return nil, passing{err}
	case res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests:
		return nil, passing{fmt.Errorf("status %d: %.200q", res.StatusCode, b)}
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("status %d: %.200q", res.StatusCode, b)
	}
	return b, nil
}

func (s *server) authorize(q *http.Request) error {
	switch {
	case s.Key == "":
		return nil
	case s.fill == nil:
		if names, err := secret.Names(s.Key); err != nil || len(names) > 0 {
			return errors.New("key: this host has no store of secrets")
		}
		q.Header.Set("Authorization", "Bearer "+s.Key)
		return nil
	}
	filled, err := s.fill(map[string]string{"key": s.Key})
	if err != nil {
		return err
	}
	q.Header.Set("Authorization", "Bearer "+filled["key"].Reveal())
	return nil
}

// vectors reads a response, whose vectors may come in any order.
func (s *server) vectors(b []byte, n int) ([][]float32, error) {
	var out struct {
		Data []struct {
			Index     int
			Embedding []float32
		}
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, passing{errors.New("the response is not of the expected form")}
	}
	if len(out.Data) != n {
		return nil, fmt.Errorf("the server returned %d vectors for %d texts", len(out.Data), n)
	}
	all := make([][]float32, n)
	for _, d := range out.Data {
		switch {
		case d.Index < 0 || d.Index >= n || all[d.Index] != nil:
			return nil, fmt.Errorf("the server returned a vector with the index %d", d.Index)
		case len(d.Embedding) != s.Dimensions:
			return nil, fmt.Errorf("the server returned %d dimensions; the settings say %d", len(d.Embedding),
				s.Dimensions)
		}
		if err := unit(d.Embedding); err != nil {
			return nil, err
		}
		all[d.Index] = d.Embedding
	}
	return all, nil
}
