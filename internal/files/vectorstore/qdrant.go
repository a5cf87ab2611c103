package vectorstore

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
)

const (
	requestTime = time.Minute
	maxResponse = 64 << 20 // bytes
	putMost     = 500      // vectors in one request
)

// qdrant is a Store in Qdrant, by its REST API.
type qdrant struct {
	url    string
	key    func() (string, error)
	client *http.Client
}

func newQdrant(url string, key func() (string, error)) *qdrant {
	return &qdrant{strings.TrimRight(url, "/"), key, &http.Client{
		Timeout: requestTime,
		// it would get the key
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Name implements Store.
func (*qdrant) Name() string { return Qdrant }

// Close implements Store.
func (q *qdrant) Close() error {
	q.client.CloseIdleConnections()
	return nil
}

// errMissing means that the collection does not exist.
var errMissing = errors.New("the collection does not exist")

// request sends one request about a collection, and decodes the result into out if that is not nil.
func (q *qdrant) request(ctx context.Context, method, collection, path string, body, out any) error {
	name, err := checkName(collection)
	if err != nil {
		return err
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, q.url+"/collections/"+name+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	key, err := q.key()
	if err != nil {
		return err
	}
	if key != "" {
		r.Header.Set("api-key", key)
	}
	res, err := q.client.Do(r)
	if err != nil {
		return fmt.Errorf("qdrant: %w", err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxResponse))
	switch {
	case err != nil:
		return fmt.Errorf("qdrant: %w", err)
	case res.StatusCode == http.StatusNotFound:
		return errMissing
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("qdrant: status %d: %.200q", res.StatusCode, b)
	}
	answer := struct {
		Result any `json:"result"`
	}{out}
	if err := json.Unmarshal(b, &answer); err != nil {
		return errors.New("qdrant: the response is not of the expected form")
	}
	return nil
}

// Put implements Store.
func (q *qdrant) Put(ctx context.Context, collection string, ids []int64, vecs [][]float32) error {
	type point struct {
		ID     int64     `json:"id"`
		Vector []float32 `json:"vector"`
	}
	for from := 0; from < len(ids); from += putMost {
		var points []point
		for i := from; i < min(from+putMost, len(ids)); i++ {
			points = append(points, point{ids[i], vecs[i]})
		}
		put := func() error {
			return q.request(ctx, http.MethodPut, collection, "/points?wait=true", map[string]any{"points": points}, nil)
		}
		err := put()
		if errors.Is(err, errMissing) {
			create := map[string]any{"vectors": map[string]any{"size": len(vecs[0]), "distance": "Cosine"}}
			// Another host may have created it meanwhile: then the second attempt succeeds in spite of the error.
			created := q.request(ctx, http.MethodPut, collection, "", create, nil)
			if err = put(); err != nil {
				err = errors.Join(err, created)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete implements Store.
func (q *qdrant) Delete(ctx context.Context, collection string, ids []int64) error {
	if len(ids) == 0 {
		return nil
	}
	err := q.request(ctx, http.MethodPost, collection, "/points/delete?wait=true", map[string]any{"points": ids}, nil)
	return ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if errors.Is(err, errMissing) {
		return nil
	}
	return err
}

// Nearest implements Store.
func (q *qdrant) Nearest(
	ctx context.Context, collection string, query []float32, n int, among []int64,
) (ids []int64, cosines []float32, err error) {
	if n < 1 || among != nil && len(among) == 0 {
		return nil, nil, nil
	}
	body := map[string]any{"query": query, "limit": n}
	if among != nil {
		body["filter"] = map[string]any{"must": []any{map[string]any{"has_id": among}}}
	}
	var out struct {
		Points []struct {
			ID    int64
			Score float32
		}
	}
	err = q.request(ctx, http.MethodPost, collection, "/points/query", body, &out)
	for _, p := range out.Points[:min(n, len(out.Points))] {
		ids = append(ids, p.ID)
		cosines = append(cosines, p.Score)
	}
	return ids, cosines, ignoreMissing(err)
}

// Drop implements Store.
func (q *qdrant) Drop(ctx context.Context, collection string) error {
	return ignoreMissing(q.request(ctx, http.MethodDelete, collection, "", nil, nil))
}
