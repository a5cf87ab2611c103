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
	stall      = 60 * time.Second // without a byte
	redirects  = 5
)

// source is where releases are.
type source interface {
	// copy copies a file of at most so many bytes; more is an error.
	copy(ctx context.Context, name string, to io.Writer, most int64, told func(int64)) (int64, error)
}

// found is a source that can be read from.
type found struct{ source }

// CheckSource says what is wrong with a source, if anything.
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
		return nil, fmt.Errorf("%.200q: expected a folder from the top, or a URL that begins with https://", text)
	}
	return u, nil
}

// allowed reports whether what comes from there cannot be read or changed on
// its way: with TLS, or from this machine.
func allowed(u *url.URL) bool {
	if u.Scheme == "https" {
		return true
	}
	a, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || err == nil && a.Unmap().IsLoopback())
}

func open(text string) (found, error) {
	if text == "" {
		return found{}, errors.New("the settings name no source of releases")
	}
	u, err := parseSource(text)
	if err != nil {
		return found{}, err
	}
	if u == nil {
		return found{folder(text)}, nil
	}
	client := &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: answerWait}).DialContext,
			TLSHandshakeTimeout: answerWait, ResponseHeaderTimeout: answerWait, MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > redirects || !allowed(r.URL) {
				return errors.New("redirected to where it may not lead")
			}
			return nil
		},
	}
	return found{&web{client, u}}, nil
}

// read reads a small file.
func (f found) read(ctx context.Context, name string, most int64) ([]byte, error) {
	var b bytes.Buffer
	_, err := f.copy(ctx, name, &b, most, func(int64) {})
	return b.Bytes(), err
}

// folder is a source on disk.
type folder string

func (d folder) copy(ctx context.Context, name string, to io.Writer, most int64, told func(int64)) (int64, error) {
	root, err := os.OpenRoot(string(d))
	if err != nil {
		return 0, err
	}
	defer root.Close()
	if info, err := root.Stat(name); err != nil {
		return 0, err
	} else if !info.Mode().IsRegular() {
		return 0, fmt.Errorf("%s is no regular file", name)
	}
	f, err := root.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return limited(ctx, to, f, most, told, func() {})
}

// web is a source on a web server.
type web struct {
	client *http.Client
	base   *url.URL
}

func (w *web) copy(ctx context.Context, name string, to io.Writer, most int64, told func(int64)) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(stall, func() { cancel(errors.New("the server sends nothing any more")) })
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
		return 0, fmt.Errorf("the server answers %.60q to %s", res.Status, name)
	}
	return limited(ctx, to, res.Body, most, told, func() { late.Reset(stall) })
}

// limited copies at most so many bytes; more is an error.
func limited(ctx context.Context, to io.Writer, from io.Reader, most int64, told func(int64), alive func()) (n int64, err error) {
	buf := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		m, err := from.Read(buf)
		alive()
		if n += int64(m); n > most {
			return n, fmt.Errorf("there are more than %d bytes", most)
		}
		if _, err := to.Write(buf[:m]); err != nil {
			return n, err
		}
		told(n)
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
