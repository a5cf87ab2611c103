package packages

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/files/atomicfile"
	"gatehouse/internal/mcp/client"
	"gatehouse/internal/packages/openapi"
)

const (
	documentFile    = "openapi.document" // in the program's folder
	documentTimeout = time.Minute        // for fetching a document
)

// fetchDocument puts the document of a package into the folder of its program.
func (p *managedPackage) fetchDocument(ctx context.Context, r *Record, plan *Plan, dir string) error {
	read := plan.readDocument
	if isAddress(r.Source.From) {
		read = func() ([]byte, error) { return downloadDocument(ctx, r.Source.From) }
	}
	text, err := read()
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	api, err := p.parseDocument(r, text)
	if err != nil {
		return invalid("source: %s", shorten(err.Error(), maxErrorMessage))
	}
	if r.Version == "" {
		r.Version = shorten(api.Version, 100)
	}
	return atomicfile.Write(filepath.Join(dir, documentFile), text)
}

// readDocument reads the document of a plan from this machine.
func (plan *Plan) readDocument() ([]byte, error) {
	root, name, err := plan.openSource()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("the document is no file"))
	}
	return readDocument(f)
}

func readDocument(from io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(from, openapi.MaxDocument+1))
	if err == nil && len(text) > openapi.MaxDocument {
		err = fmt.Errorf("the document has more than %d bytes", openapi.MaxDocument)
	}
	return text, err
}

// downloadDocument reads the document at an address.
func downloadDocument(ctx context.Context, address string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, documentTimeout)
	defer cancel()
	address, fragment, _ := strings.Cut(address, "#")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	hc := http.Client{
		Transport: (&Record{}).remoteTransport(),
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) > 3 || req.URL.Scheme != via[0].URL.Scheme || req.URL.Host != via[0].URL.Host {
				return errors.New("it redirects to " + req.URL.Host + "; give that address")
			}
			return nil
		},
	}
	defer hc.CloseIdleConnections()
	resp, err := hc.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %d", req.URL.Host, resp.StatusCode)
	}
	text, err := readDocument(resp.Body)
	if err != nil {
		return nil, err
	}
	got := fmt.Sprintf("%x", sha256.Sum256(text))
	if want := strings.TrimPrefix(fragment, "sha256="); want != "" && want != got {
		return nil, fmt.Errorf("the document has the SHA-256 %s, and %s was asked for; nothing was changed", got, want)
	}
	return text, nil
}

// parseDocument makes the tools of a document, by the arguments and the variables of a record.
func (p *managedPackage) parseDocument(r *Record, text []byte) (*openapi.API, error) {
	fill := p.manager.opts.Secrets
	if fill == nil {
		fill = noSecrets
	}
	filled, err := fill(r.Env)
	if err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	o := openapi.Options{Credentials: map[string]secret.Text{}, Variables: map[string]string{}}
	for name, value := range filled {
		o.Credentials[strings.ToUpper(name)] = value
	}
	if isAddress(r.Source.From) {
		o.At = r.Source.From
	}
	for _, word := range r.Args {
		name, value, _ := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		variable, is := strings.CutPrefix(name, "variable.")
		switch {
		case value == "":
			return nil, fmt.Errorf("argument %q: expected only=tag:NAME, server=ADDRESS or variable.NAME=VALUE", word)
		case is:
			o.Variables[variable] = value
		case name == "only":
			o.Only = append(o.Only, value)
		case name == "server":
			o.Server = value
		default:
			return nil, fmt.Errorf("argument %q: expected only=tag:NAME, server=ADDRESS or variable.NAME=VALUE", word)
		}
	}
	return openapi.Parse(text, o)
}

// connectOpenAPI returns an upstream that serves the operations of a document, in this process.
func (p *managedPackage) connectOpenAPI(ctx context.Context, r *Record, o client.ConnOptions) (*upstream, error) {
	text, err := atomicfile.Read(filepath.Join(p.folder(), r.Program, documentFile), openapi.MaxDocument)
	if errors.Is(err, os.ErrNotExist) {
		err = errors.New("the document of the package is missing; install it again with gatehouse package update")
	}
	if err != nil {
		return nil, err
	}
	api, err := p.parseDocument(r, text)
	if err != nil {
		return nil, err
	}
	var hidden []secret.Text
	for _, name := range slices.Sorted(maps.Keys(r.Env)) {
		if refers, _ := secret.Names(r.Env[name]); len(refers) > 0 {
			filled, err := p.manager.opts.Secrets(map[string]string{name: r.Env[name]})
			if err != nil {
				return nil, err
			}
			hidden = append(hidden, filled[name])
		}
	}
	u := &upstream{
		journal: &p.journal, watched: &p.watched, secrets: secret.NewHider(hidden...), relist: make(chan struct{}, 1),
		gone: make(chan struct{}), used: time.Now(),
	}
	limit := int(p.manager.opts.Message)
	o.Limit, o.Notified, o.Invalid = limit, u.handleNotification, u.handleInvalid
	o.TooLong = func(n int64) error { return u.tooLong(n, limit) }
	near, far := net.Pipe()
	u.conn = client.NewSocket(near, "", o)
	p.manager.goWork(func(ctx context.Context) {
		api.Serve(ctx, far) // it ends with the connection, or with the manager
		u.conn.Close()
		close(u.gone)
	})
	return u, nil
}
