package update

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	answerWait = 30 * time.Second
	stall      = 60 * time.Second // the longest time without a byte
	redirects  = 5
)

// source holds releases.
type source interface {
	// copy copies a file. It returns an error if the file has more than limit
	// bytes. progress receives the number of bytes so far.
	copy(ctx context.Context, name string, to io.Writer, limit int64, progress func(int64)) (int64, error)
}

// CheckSource returns an error if text is not a valid source.
func CheckSource(text string) error {
	_, err := parseSource(text)
	return err
}

func parseSource(text string) (*url.URL, error) {
	if filepath.IsAbs(text) {
		return nil, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || !allowed(u) {
		return nil, fmt.Errorf("%.200q: expected an absolute folder, or a URL that begins with https://", text)
	}
	return u, nil
}

// allowed reports whether no one on the network can change the content of u on its way: it comes
// over TLS or from this machine.
func allowed(u *url.URL) bool {
	if u.Scheme == "https" {
		return true
	}
	a, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && a.Unmap().IsLoopback())
}

func openSource(text string) (source, error) {
	if text == "" {
		return nil, ErrNoSource
	}
	u, err := parseSource(text)
	if err != nil {
		return nil, err
	}
	if u == nil {
		return folder(text), nil
	}
	client := &http.Client{
		Transport: &http.Transport{
			Proxy:                  http.ProxyFromEnvironment,
			DialContext:            (&net.Dialer{Timeout: answerWait}).DialContext,
			TLSHandshakeTimeout:    answerWait,
			ResponseHeaderTimeout:  answerWait,
			MaxResponseHeaderBytes: 64 << 10,
			DisableKeepAlives:      true,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > redirects || !allowed(r.URL) {
				return fmt.Errorf("the server redirects to %.200s, which is not allowed", r.URL.Redacted())
			}
			return nil
		},
	}
	return &web{client, u}, nil
}

// readFile reads a small file into memory.
func readFile(ctx context.Context, s source, name string, limit int64) ([]byte, error) {
	var b bytes.Buffer
	_, err := s.copy(ctx, name, &b, limit, func(int64) {})
	return b.Bytes(), err
}

// folder is a source on disk.
type folder string

func (d folder) copy(ctx context.Context, name string, to io.Writer, limit int64, progress func(int64)) (int64, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return 0, err
	}
	defer root.Close()
	if info, err := root.Stat(name); err != nil {
		return 0, err
	} else if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return limitedCopy(ctx, to, f, limit, progress, func() {})
}

// web is a source on a web server.
type web struct {
	client *http.Client
	base   *url.URL
}

func (w *web) copy(ctx context.Context, name string, to io.Writer, limit int64, progress func(int64)) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(stall, func() { cancel(errors.New("the server stopped sending")) })
	defer late.Stop()
	at := *w.base
	at.Path = strings.TrimSuffix(at.Path, "/") + "/" + name
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return 0, err
	}
	res, err := w.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the server answered %.60q for %s", res.Status, name)
	}
	return limitedCopy(ctx, to, res.Body, limit, progress, func() { late.Reset(stall) })
}

// limitedCopy copies until the end of from. It returns an error if there are more
// than limit bytes. It calls alive after each read.
func limitedCopy(
	ctx context.Context, to io.Writer, from io.Reader, limit int64, progress func(int64), alive func(),
) (n int64, err error) {
	buf := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		m, err := from.Read(buf)
		alive()
		if n += int64(m); n > limit {
			return n, fmt.Errorf("the file has more than %d bytes", limit)
		}
		if _, err := to.Write(buf[:m]); err != nil {
			return n, err
		}
		progress(n)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return n, err
		}
	}
}
