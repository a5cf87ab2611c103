package proxy

import (
	"io"

	"gatehouse/internal/access/secret"
)

// search returns a search for the secrets in every form: plain, and as encoded in URLs, JSON and HTML.
func (s secrets) search() secret.Search {
	all := secret.NewSearch()
	add := func(find, put string) {
		for _, form := range forms(find) {
			all.Add([]byte(form), []byte(put))
		}
	}
	for _, h := range s {
		add(h.value, h.placeholder)
		for _, k := range h.sent {
			add(k.secret, k.placeholder)
		}
	}
	return all
}

// redactedBody is a body without secrets.
type redactedBody struct {
	from   io.ReadCloser
	search secret.Search
	ready  []byte
	rest   []byte
	err    error
}

// Read returns what can be passed on of the next bytes of the body. If the body breaks off, the bytes that are
// held back are not returned: they may be the beginning of a secret.
func (h *redactedBody) Read(b []byte) (int, error) {
	for len(h.ready) == 0 {
		if h.err != nil {
			return 0, h.err
		}
		buf := make([]byte, len(h.rest), len(h.rest)+32<<10)
		copy(buf, h.rest)
		n, err := h.from.Read(buf[len(buf):cap(buf)])
		h.err = err
		h.ready, h.rest = h.search.Replace(buf[:len(buf)+n], err == io.EOF)
	}
	n := copy(b, h.ready)
	h.ready = h.ready[n:]
	return n, nil
}

// Close implements io.Closer.
func (h *redactedBody) Close() error { return h.from.Close() }
