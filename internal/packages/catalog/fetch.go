package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	requestTimeout = 20 * time.Second
	maxBody        = 16 << 20 // bytes of one answer
)

// errNotFound is the error of an address at which there is nothing.
var errNotFound = errors.New("there is no such entry")

// statusError is the error of an answer that is neither 200 nor 404.
type statusError struct {
	code       int
	host, text string
}

func (e *statusError) Error() string { return e.host + " answers " + e.text }

// notOffered reports whether a server says by its answer that it has no such API.
func notOffered(err error) bool {
	if errors.Is(err, errNotFound) {
		return true
	}
	e, ok := errors.AsType[*statusError](err)
	return ok &&
		(e.code == http.StatusMethodNotAllowed || e.code == http.StatusGone || e.code == http.StatusNotImplemented)
}

// get fetches an address and decodes its JSON into out.
func (c *Catalog) get(ctx context.Context, address string, out any) error {
	b, err := c.fetch(ctx, address)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("the answer of %s is not the expected JSON: %w", hostOf(address), err)
	}
	return nil
}

func (c *Catalog) fetch(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	r.Header.Set("User-Agent", "gatehouse/"+c.opts.Version)
	w, err := c.http.Do(r)
	if err != nil {
		var failed *url.Error
		if errors.As(err, &failed) {
			err = failed.Err // the address is in the report
		}
		return nil, err
	}
	defer w.Body.Close()
	b, err := io.ReadAll(io.LimitReader(w.Body, maxBody+1))
	switch {
	case w.StatusCode == http.StatusNotFound:
		return nil, errNotFound
	case w.StatusCode != http.StatusOK:
		return nil, &statusError{w.StatusCode, hostOf(address), w.Status}
	case err != nil:
		return nil, err
	case len(b) > maxBody:
		return nil, fmt.Errorf("the answer of %s is longer than %d bytes", hostOf(address), maxBody)
	}
	return b, nil
}

// joinURL appends a path to a base address.
func joinURL(base, path string) string { return strings.TrimRight(base, "/") + path }
