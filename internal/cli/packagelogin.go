package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// loginPatience is how long the command waits for the user's approval, as long as the host does.
const loginPatience = 10 * time.Minute

// loginStep is the result of package_login.
type loginStep struct {
	URL      string   `json:"url"`
	Redirect string   `json:"redirect"`
	Issuer   string   `json:"issuer"`
	Scopes   []string `json:"scopes"`
	Done     bool     `json:"done"`
}

func packageLogin(w Environment) *cobra.Command {
	var p packageFlags
	var paste bool
	c := &cobra.Command{
		Use:   "login NAME",
		Short: "Log in at the remote server of a package",
		Long: `Log in at the remote server of a package that requires it. The command prints the
address at which you approve, and waits until your browser is sent back to this
machine. If the browser runs on another machine, --paste reads the address to which
it was sent back; the page itself need not load there.

The login is for all callers of the package, unless it was added with --login
principal; then it is yours. Its tokens are kept encrypted beside the secret store.`,
		Example: `  gatehouse package login docs
  gatehouse package login docs --paste`,
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			a, err := p.connect(c, w)
			if err != nil {
				return err
			}
			defer a.close()
			ctx, cancel := context.WithTimeoutCause(c.Context(), loginPatience,
				fmt.Errorf("nobody has approved within %v", loginPatience))
			defer cancel()
			if err := logIn(ctx, w, a, args[0], paste); err != nil {
				return err
			}
			fmt.Fprintf(w.Err, "[gatehouse] Logged in to package %s\n", args[0])
			if p.json {
				return showJSON(w.Out, loginStep{Done: true})
			}
			return nil
		},
	}
	p.registerFlags(c.Flags())
	c.Flags().BoolVar(&paste, "paste", false, "read from standard input the address to which the browser was sent back")
	c.ValidArgsFunction = p.packageNames(w)
	return c
}

// logIn logs in at a package.
func logIn(ctx context.Context, w Environment, a *admin, name string, paste bool) error {
	in := map[string]any{"id": name, "redirect": "http://127.0.0.1:1/callback"}
	var back *redirected
	if !paste {
		var err error
		if back, err = listenForRedirect("127.0.0.1:0", "/callback"); err != nil {
			return err
		}
		defer func() { back.close() }()
		in["redirect"] = back.address
	}
	var step loginStep
	if err := a.callTool(ctx, w, "package_login", in, &step); err != nil {
		return err
	}
	if back != nil && step.Redirect != back.address { // a setting of the package names another
		u, err := url.Parse(step.Redirect)
		if err != nil {
			return err
		}
		back.close()
		if back, err = listenForRedirect(u.Host, u.Path); err != nil {
			return err
		}
	}
	fmt.Fprintf(w.Err, "[gatehouse] Approve at %s:\n", printable(step.Issuer))
	fmt.Fprintln(w.Out, printable(step.URL))
	var address string
	var err error
	if paste {
		fmt.Fprintln(w.Err,
			"[gatehouse] Then paste the address to which your browser was sent back; the page need not load:")
		address, err = readAddress(ctx, w)
	} else {
		address, err = back.waitForRedirect(ctx)
	}
	if err != nil {
		return err
	}
	return a.callTool(ctx, w, "package_login", map[string]any{"id": name, "redirected": address}, &step)
}

const maxAddress = 16 << 10 // bytes of an address that is read

// readAddress reads one line from standard input.
func readAddress(ctx context.Context, w Environment) (string, error) {
	type read struct {
		line string
		err  error
	}
	got := make(chan read, 1)
	go func() { // it ends with the line, or with the process
		lines := bufio.NewScanner(w.In)
		lines.Buffer(nil, maxAddress)
		lines.Scan()
		got <- read{strings.TrimSpace(lines.Text()), lines.Err()}
	}()
	select {
	case r := <-got:
		if r.err == nil && r.line == "" {
			r.err = errors.New("there is no address on standard input")
		}
		return r.line, r.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// redirected waits on the loopback interface for the browser of a user.
type redirected struct {
	address string // of its page
	server  *http.Server
	got     chan string // holds one
}

// listenForRedirect listens at a host and port for requests of one path.
func listenForRedirect(host, path string) (*redirected, error) {
	l, err := net.Listen("tcp", host)
	if err != nil {
		return nil, fmt.Errorf("wait for the browser: %w; --paste needs no listener", err)
	}
	r := &redirected{address: "http://" + l.Addr().String() + path, got: make(chan string, 1)}
	r.server = &http.Server{
		Handler: r, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: maxAddress,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	go r.server.Serve(l) // until close
	return r, nil
}

// ServeHTTP implements http.Handler. The first request with a state is the answer; the host
// checks it.
func (r *redirected) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	u, err := url.Parse(r.address)
	if err != nil || req.URL.Path != u.Path || req.URL.Query().Get("state") == "" {
		http.NotFound(w, req)
		return
	}
	u.RawQuery = req.URL.RawQuery
	select {
	case r.got <- u.String():
		fmt.Fprintln(w, "Return to the terminal, which says whether you are logged in. You can close this page.")
	default:
		http.Error(w, "this login was answered already", http.StatusConflict)
	}
}

func (r *redirected) waitForRedirect(ctx context.Context) (string, error) {
	select {
	case address := <-r.got:
		return address, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// close ends the listener, after the page that is being written.
func (r *redirected) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if r.server.Shutdown(ctx) != nil {
		r.server.Close()
	}
}

func packageLogout(w Environment) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Use:     "logout NAME",
		Short:   "Forget the login at the remote server of a package",
		Example: "  gatehouse package logout docs",
		Args:    exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			return callOnce(&p, c, w, "package_logout", packageID{args[0]}, func(out struct{ Was bool }) error {
				if !out.Was {
					fmt.Fprintf(w.Err, "[gatehouse] There was no login to package %s\n", args[0])
					return nil
				}
				fmt.Fprintf(w.Err, "[gatehouse] Logged out of package %s\n", args[0])
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}
