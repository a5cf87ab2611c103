package conformance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// notOnLines are scenarios that test HTTP itself.
var notOnLines = map[string]string{
	"dns-rebinding-protection":             "Host and Origin are HTTP headers",
	"http-header-validation":               "lines have no headers",
	"http-custom-header-server-validation": "lines have no headers",
	"server-sse-polling":                   "lines have no event streams",
	"server-sse-multiple-streams":          "lines have no event streams",
	"server-session-lifecycle":             "sessions ended by DELETE are HTTP's",
}

// checksNotOnLines are checks of HTTP in other scenarios.
var checksNotOnLines = map[string]string{
	"server-session-id-visible-ascii":                          "server-initialize",
	"sep-2575-http-server-header-mismatch-400":                 "server-stateless",
	"tasks-headers-reject-mismatched-method":                   "tasks-request-headers",
	"sep-2663-server-rejects-mismatched-mcp-name-on-tasks-get": "tasks-request-headers",
}

// overLines removes from a column what newline-framed connections cannot have, and records it.
func (c *Column) overLines() {
	c.Left = map[string]string{}
	c.Scenarios = slices.DeleteFunc(c.Scenarios, func(s Scenario) bool {
		why, out := notOnLines[s.Name]
		if out {
			c.Left[s.Name] = why
			c.Want--
		}
		return out
	})
	for i := range c.Scenarios {
		s := &c.Scenarios[i]
		s.Checks = slices.DeleteFunc(s.Checks, func(k Check) bool {
			out := checksNotOnLines[k.ID] == s.Name
			if out {
				c.Left[s.Name+", check "+k.ID] = "lines have no headers"
			}
			return out
		})
	}
}

// dial opens one newline connection.
type dial = func(context.Context) (io.ReadWriteCloser, error)

// lineEndpoints returns the newline-framed endpoints of a running fixture, and its standard streams, for which each
// connection is a process of its own.
func lineEndpoints(d Endpoints, bin string) map[string]dial {
	network := func(network, addr string) dial {
		return func(ctx context.Context) (io.ReadWriteCloser, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}
	return map[string]dial{
		"tcp":   network("tcp", d.TCP),
		"unix":  network("unix", d.Unix),
		"stdio": func(context.Context) (io.ReadWriteCloser, error) { return startStdio(bin) },
	}
}

// overHTTP runs every suite against the URL of a fixture.
func overHTTP(ctx context.Context, t Tools, all *turns, url, out string) ([]Column, error) {
	return overAll(ctx, t, all, url, out, func(*Column) {})
}

// overAll runs every suite; leave removes from a column what its endpoint does not have.
func overAll(ctx context.Context, t Tools, all *turns, url, out string, leave func(*Column)) ([]Column, error) {
	var columns []Column
	for _, s := range Suites() {
		all.RLock()
		c, err := s.column(ctx, t, url, filepath.Join(out, s.Name))
		all.RUnlock()
		if err == nil {
			leave(&c)
			err = s.settle(ctx, t, all, url, filepath.Join(out, s.Name+" again"), &c, leave)
		}
		if err != nil {
			return columns, err
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// tries is how often a scenario that is not clean is run altogether.
const tries = 3

// turns lets suites run side by side, except for one that needs the whole machine.
type turns struct{ sync.RWMutex }

// settle repeats scenarios that are not clean, one at a time. The suites allow a server 0.5 to 1.5 s for a message,
// which may be too short on a busy machine; a defect shows every time.
func (s Suite) settle(ctx context.Context, t Tools, all *turns, url, out string, c *Column, leave func(*Column)) error {
	out = strings.ReplaceAll(out, " ", "-")
	for i := range c.Scenarios {
		for n := 1; n < tries && len(c.Scenarios[i].Wrong()) > 0; n++ {
			c.Again = append(c.Again, fmt.Sprintf("%s: %s", c.Scenarios[i].Name, c.Scenarios[i].Wrong()[0].ID))
			into := filepath.Join(out, fmt.Sprintf("%s-%d", c.Scenarios[i].Name, n))
			if err := os.MkdirAll(into, 0o755); err != nil {
				return err
			}
			all.Lock()
			found, err := s.RunOne(ctx, t, url, into, c.Scenarios[i].Name, s.Name)
			all.Unlock()
			if err != nil {
				return err
			}
			one := Column{Scenarios: []Scenario{found}}
			leave(&one)
			if len(one.Scenarios[0].Checks) >= len(c.Scenarios[i].Checks) {
				c.Scenarios[i] = one.Scenarios[0]
			}
		}
	}
	return nil
}

// throughLines runs every suite through the shim to a newline-framed endpoint.
func throughLines(
	ctx context.Context,
	t Tools,
	all *turns,
	endpoint string,
	d dial,
	seen Witness,
	out string,
) ([]Column, error) {
	shim := &Shim{Dial: d, Seen: seen}
	defer shim.Close()
	front := httptest.NewServer(http.HandlerFunc(shim.ServeHTTP))
	defer front.Close()
	columns, err := overAll(ctx, t, all, front.URL+"/mcp", filepath.Join(out, endpoint), (*Column).overLines)
	for i := range columns {
		columns[i].Name += " " + endpoint
	}
	return columns, err
}

// withToken runs every suite against a fixture that requires a token, which a proxy adds because the suites know no
// credentials. The proxy does not change Host and Origin, which some scenarios test.
func withToken(ctx context.Context, t Tools, all *turns, bin, out string) ([]Column, error) {
	token := rand.Text()
	s, err := start(ctx, bin, "--http", "127.0.0.1:0", "--auth-token", token)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	resp, err := http.Post(s.URL, "application/json", strings.NewReader(`{}`))
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		return nil, fmt.Errorf("a request without a token was answered %s, not turned away", resp.Status)
	}
	target, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	front := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+token)
	}})
	defer front.Close()
	columns, err := overHTTP(ctx, t, all, front.URL+"/mcp", filepath.Join(out, "token"))
	for i := range columns {
		columns[i].Name += " token"
	}
	return columns, errors.Join(err, s.Stop())
}

func (s Suite) column(ctx context.Context, t Tools, url, out string) (Column, error) {
	out = strings.ReplaceAll(out, " ", "-")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return Column{}, err
	}
	found, err := s.Run(ctx, t, url, out)
	return Column{Name: s.Name, Want: s.Scenarios, Scenarios: found}, err
}

// Everything runs all suites over all endpoints of one fixture process. The endpoints are tested one after the
// other, because the suites change what the process lists. Standard streams have processes of their own and are
// tested at the same time.
func Everything(ctx context.Context, t Tools, bin string, d Endpoints, seen Witness, out string) ([]Column, error) {
	endpoints := lineEndpoints(d, bin)
	var all turns
	var meanwhile sync.WaitGroup
	var stdio, locked []Column
	var stdioErr, lockedErr error
	meanwhile.Go(func() {
		stdio, stdioErr = throughLines(ctx, t, &all, "stdio", endpoints["stdio"], seen, out)
		locked, lockedErr = withToken(ctx, t, &all, bin, out)
	})
	columns, err := overHTTP(ctx, t, &all, d.URL, filepath.Join(out, "http"))
	for _, endpoint := range []string{"tcp", "unix"} {
		if err == nil {
			var more []Column
			more, err = throughLines(ctx, t, &all, endpoint, endpoints[endpoint], seen, out)
			columns = append(columns, more...)
		}
	}
	meanwhile.Wait()
	return slices.Concat(columns, stdio, locked), errors.Join(err, stdioErr, lockedErr)
}

// RunAll builds and starts the fixture, runs everything, prints the table to w, and returns an error if a check
// failed.
func RunAll(ctx context.Context, t Tools, w io.Writer) error {
	dir, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin, err := Build(ctx, dir)
	if err != nil {
		return err
	}
	s, err := Start(ctx, bin, dir)
	if err != nil {
		return err
	}
	defer s.Stop()
	columns, err := Everything(ctx, t, bin, s.Endpoints, nil, dir)
	if printErr := Print(w, columns); err == nil {
		err = printErr
	}
	return errors.Join(err, verdict(w, columns), s.Stop())
}

func verdict(w io.Writer, columns []Column) error {
	wrong := 0
	for _, c := range columns {
		for _, line := range c.Clean() {
			fmt.Fprintln(w, line)
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d things are not as they should be", wrong)
	}
	return nil
}
