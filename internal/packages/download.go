package packages

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/tool"
)

const mostRedirects = 10

// downloads fetches the files of sources.
var downloads = &http.Client{
	Transport: &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  30 * time.Second,
		MaxResponseHeaderBytes: 1 << 20,
		DisableKeepAlives:      true,
	},
	// A redirect leads to https alone, and never from another machine to this one.
	CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case len(via) >= mostRedirects:
			return fmt.Errorf("more than %d redirects", mostRedirects)
		case isLoopback(via[0].URL.Hostname()):
			return nil
		case r.URL.Scheme != "https" || isLoopback(r.URL.Hostname()):
			return fmt.Errorf("a redirect to %s, which is not https of another machine", r.URL.Redacted())
		}
		return nil
	},
}

// download fetches the file of a source from its address into a file beside the program's folder. It compares the
// hash with that of the source, or of the same source when it was installed before, and stores it in the record. remove
// deletes the file.
func (p *managedPackage) download(
	ctx context.Context, r *Record, dir string, fresh bool, say func(done, total int64, units string),
) (root *os.Root, name string, remove func(), err error) {
	u, err := url.Parse(r.Source.From)
	if err != nil {
		return nil, "", nil, err
	}
	want := strings.TrimPrefix(u.Fragment, "sha256=")
	u.Fragment = ""
	name = filepath.Base(dir) + ".download"
	if root, err = os.OpenRoot(p.folder()); err != nil {
		return nil, "", nil, err
	}
	remove = func() { _ = root.Remove(name) } // the next installation removes what is left of this one
	got, err := fetchFile(ctx, u.String(), root, name, say)
	if err == nil {
		err = p.checkDigest(r, "sha256:"+want, "sha256:"+got, fresh)
	}
	if err != nil {
		remove()
		return nil, "", nil, errors.Join(fmt.Errorf("source %s: %w", u.Redacted(), err), root.Close())
	}
	return root, name, remove, nil
}

// checkDigest compares what was fetched with what a source says, and with what was installed from it before. It stores
// the digest in the record.
func (p *managedPackage) checkDigest(r *Record, want, got string, fresh bool) error {
	if want != "sha256:" && want != got {
		return &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: fmt.Sprintf("its hash is %s, and not %s as the source says", got, want),
			Next:    "Do not trust it; ask its publisher for the hash of the file.",
		}
	}
	p.mu.Lock()
	was := p.rec
	p.mu.Unlock()
	if !fresh && was.State != Installing && was.Source == r.Source && was.Digest != "" && was.Digest != got {
		return &tool.Refusal{
			Code:    tool.CodeStale,
			Message: fmt.Sprintf("it has changed since it was installed: %s, before %s", got, was.Digest),
			Next:    "gatehouse package update installs what is there now.",
		}
	}
	r.Digest = got
	return nil
}

// fetchFile fetches an address into a new file and returns the hash of its content.
func fetchFile(
	ctx context.Context, address string, root *os.Root, name string, say func(done, total int64, units string),
) (sum string, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return "", err
	}
	w, err := downloads.Do(q)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err // the caller names the address
		}
		return "", err
	}
	defer w.Body.Close()
	switch {
	case w.StatusCode != http.StatusOK:
		return "", fmt.Errorf("the server answers %s", w.Status)
	case w.ContentLength > mostBytes:
		return "", tooMany()
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	counted := &counting{w: io.MultiWriter(f, h), say: func(n int64) { say(n, max(w.ContentLength, 0), "bytes") }}
	n, err := io.Copy(counted, io.LimitReader(w.Body, mostBytes+1))
	if err == nil && n > mostBytes {
		err = tooMany()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", errors.Join(err, root.Remove(name))
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// counting reports how much was written, at most once per second.
type counting struct {
	w    io.Writer
	say  func(int64)
	n    int64
	last time.Time
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	if now := time.Now(); now.Sub(c.last) > time.Second {
		c.last = now
		c.say(c.n)
	}
	return n, err
}
