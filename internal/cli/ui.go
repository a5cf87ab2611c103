package cli

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/access/identity"
	"gatehouse/internal/config"
)

// uiFlags are the flags of gatehouse ui.
type uiFlags struct {
	url, user, ca string
	print         bool
}

func uiCommand(w Environment) *cobra.Command {
	var f uiFlags
	c := &cobra.Command{
		Use:   "ui",
		Short: "Open the pages of a running host in the browser, logged in",
		Long: `Open the pages of a running host in the browser, logged in by a link that works once,
within two minutes. Without --user it logs in the user of the operating system, who
administers the host. The host must use this data folder; the link is made only after
it has proved that it does.

At a terminal the login counts as that of a person, who may approve calls; a link that
a program makes for itself does not.`,
		Example: `  gatehouse ui
  gatehouse ui --print
  gatehouse ui --url http://127.0.0.1:8080 --user alice`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.openPages(c.Context(), w) },
	}
	c.Flags().StringVar(&f.url, "url", "", "`address` of the host (default: that of the settings)")
	c.Flags().StringVar(&f.user, "user", "", "the user who is logged in (default: that of the operating system)")
	c.Flags().StringVar(&f.ca, "ca", "", "`file` with the authorities of the host's certificate")
	c.Flags().BoolVar(&f.print, "print", false, "print the link and open nothing")
	return c
}

func (f *uiFlags) openPages(ctx context.Context, w Environment) error {
	at, err := f.address(w)
	if err != nil {
		return err
	}
	opener := browserCommand(w.Getenv)
	shows := f.print || opener == ""
	// What is printed where no person reads it is for a program.
	terminal := isTerminal(w.Err) && (!shows || isTerminal(w.Out))
	var saw auditTrail
	s, err := openUsers(w, saw.record)
	if err != nil {
		return err
	}
	link, err := s.CreateLink(ctx, f.user, terminal)
	if err == nil {
		err = f.prove(ctx, w, at, link)
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	if err := writeDown(w, saw.seen...); err != nil {
		return errors.Join(err, s.Close())
	}
	to := at.String() + "/#login=" + link.Code
	if shows {
		fmt.Fprintln(w.Err, "[gatehouse] This link works once, for two minutes:")
		_, err = fmt.Fprintln(w.Out, to)
	} else {
		fmt.Fprintf(w.Err, "[gatehouse] Opening %s in the browser; --print prints a link instead\n", at)
		err = openPrivately(ctx, w, opener, to, func() bool { return s.LinkWaits(ctx, link.ID) })
	}
	return errors.Join(err, s.Close())
}

// address returns scheme, host and port of the host.
func (f *uiFlags) address(w Environment) (*url.URL, error) {
	if f.url != "" {
		at, err := url.Parse(f.url)
		if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
			return nil, usagef("--url: %q is not an address; expected one such as http://127.0.0.1:3000", f.url)
		}
		if at.Scheme == "http" && !config.Loopback(at.Hostname()) {
			return nil, usagef("--url: %s is not on this machine, where a login needs https", f.url)
		}
		return &url.URL{Scheme: at.Scheme, Host: at.Host}, nil
	}
	l, err := config.Load(w.Getenv, "")
	if err != nil {
		return nil, &usageError{err}
	}
	h := l.Listen.HTTP
	at := &url.URL{Scheme: "http", Host: net.JoinHostPort(h.Host, strconv.Itoa(h.Port))}
	if h.TLS.On {
		at.Scheme = "https"
	}
	if ip := net.ParseIP(h.Host); ip != nil && ip.IsUnspecified() {
		at.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(h.Port))
	}
	return at, nil
}

const proveTime = 5 * time.Second

// prove returns an error unless the host at an address knows the link, because another program may listen there.
func (f *uiFlags) prove(ctx context.Context, w Environment, at *url.URL, link identity.LoginLink) error {
	ctx, cancel := context.WithTimeout(ctx, proveTime)
	defer cancel()
	pool, err := authorities(at.String(), f.ca, w.Getenv)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	client := http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	challenge := rand.Text()
	query := url.Values{"link": {link.ID}, "challenge": {challenge}}
	r, err := http.NewRequestWithContext(ctx, "GET", at.String()+"/auth/link/proof?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	res, err := client.Do(r)
	if err != nil {
		if failed, is := errors.AsType[*url.Error](err); is {
			err = failed.Err // without the address, which holds the challenge
		}
		return fmt.Errorf(
			"no host answers at %s (%w); start one with gatehouse serve --http, or name its address with --url",
			at,
			err,
		)
	}
	defer res.Body.Close()
	var said struct{ Proof string }
	err = json.NewDecoder(io.LimitReader(res.Body, 4096)).Decode(&said)
	port := at.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[at.Scheme]
	}
	if err != nil || !link.Proves(challenge, port, said.Proof) {
		return fmt.Errorf("the program at %s is not a host with this data folder; name the address of one with --url",
			at)
	}
	return nil
}

// browserCommand returns the program that opens a file in the user's browser, or "" if there is none.
func browserCommand(getenv func(string) string) string {
	name := "xdg-open"
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name = "explorer"
	default:
		if getenv("DISPLAY") == "" && getenv("WAYLAND_DISPLAY") == "" {
			return ""
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// openPrivately opens an address in the browser by a file that only this user can read, because other users see the
// arguments of programs. It returns when waits returns false, or when the link has expired.
func openPrivately(ctx context.Context, w Environment, opener, to string, waits func() bool) error {
	cfg, err := config.FromEnv(w.Getenv)
	if err != nil {
		return &usageError{err}
	}
	if err := config.OwnFolder(cfg.Folders.Runtime); err != nil {
		return err
	}
	f, err := os.CreateTemp(cfg.Folders.Runtime, "ui-*.html") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintf(f,
		"<!doctype html><meta name=referrer content=no-referrer><meta http-equiv=refresh content=\"0;url=%s\">\n",
		html.EscapeString(to))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	started := exec.CommandContext(ctx, opener, filepath.ToSlash(f.Name()))
	if err := started.Start(); err != nil {
		return fmt.Errorf("open the browser: %w; --print prints the link", err)
	}
	go started.Wait() // the opener may stay as long as its browser; it belongs to the user
	for end := time.Now().Add(2 * time.Minute); waits() && time.Now().Before(end); {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	return nil
}
