package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"
)

// mcp is the stories' own client, as plain as curl:
//
//	mcp post URL FILE [Header:value...]    posts each line, prints status and body
//	mcp get URL PATTERN [Header:value...]  gets it until a line fits, prints all
//	mcp lines unix PATH FILE               sends each line, prints as many answers
//	mcp lines tcp HOST:PORT FILE           as it sent requests
//
// A session id that the server gives goes with the later posts. Over https it
// believes the certificate in the file MCP_CA alone, shows the one in MCP_CERT
// with the key MCP_KEY, and prints the version of HTTP in front.
func mcp(args []string, out, stderr io.Writer) int {
	var err error
	switch {
	case len(args) >= 3 && args[0] == "post":
		err = post(args[1], args[2], args[3:], out)
	case len(args) >= 3 && args[0] == "get":
		err = get(args[1], args[2], args[3:], out)
	case len(args) == 4 && args[0] == "lines":
		err = converse(args[1], args[2], args[3], out)
	default:
		err = fmt.Errorf(
			"usage: mcp post URL FILE [header...] | mcp get URL PATTERN [header...] | mcp lines NETWORK ADDRESS FILE",
		)
	}
	if err != nil {
		fmt.Fprintln(stderr, "mcp:", err)
		return 1
	}
	return 0
}

// messages are the lines of a file, without the empty ones.
func messages(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(b), func(r rune) bool { return r == '\n' }), nil
}

func post(url, file string, headers []string, out io.Writer) error {
	all, err := messages(file)
	if err != nil {
		return err
	}
	client, err := httpClient(url)
	if err != nil {
		return err
	}
	session := ""
	for _, m := range all {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(m))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		setHeaders(req, headers)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			session = id
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if resp.TLS != nil {
			fmt.Fprint(out, resp.Proto, " ")
		}
		fmt.Fprintf(out, "%d %s\n", resp.StatusCode, strings.TrimSpace(string(body)))
	}
	return nil
}

// get asks until a line of the answer fits: what is counted is counted a
// moment after it has happened.
func get(url, pattern string, headers []string, out io.Writer) error {
	fits, err := regexp.Compile("(?m)^.*(" + pattern + ").*$")
	if err != nil {
		return err
	}
	client, err := httpClient(url)
	if err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		setHeaders(req, headers)
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		switch {
		case err != nil:
			return err
		case resp.StatusCode != 200:
			return fmt.Errorf("answered %d %s", resp.StatusCode, body)
		case fits.Match(body):
			_, err = out.Write(body)
			return err
		case time.Now().After(end):
			return fmt.Errorf("no line fits %s in\n%s", pattern, body)
		}
	}
}

func setHeaders(r *http.Request, headers []string) {
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ":")
		r.Header.Set(name, value)
	}
}

func httpClient(url string) (*http.Client, error) {
	client := &http.Client{Timeout: patience}
	if !strings.HasPrefix(url, "https:") {
		return client, nil
	}
	ca, err := os.ReadFile(os.Getenv("MCP_CA"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	t := &tls.Config{RootCAs: pool}
	if file := os.Getenv("MCP_CERT"); file != "" {
		pair, err := tls.LoadX509KeyPair(file, os.Getenv("MCP_KEY"))
		if err != nil {
			return nil, err
		}
		t.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	client.Transport = &http.Transport{TLSClientConfig: t, ForceAttemptHTTP2: true}
	return client, nil
}

func converse(network, address, file string, out io.Writer) error {
	all, err := messages(file)
	if err != nil {
		return err
	}
	conn, err := net.DialTimeout(network, address, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 32<<20)
	for _, m := range all {
		if _, err := fmt.Fprintln(conn, m); err != nil {
			return err
		}
		var r struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
		}
		if json.Unmarshal([]byte(m), &r) == nil && r.ID == nil {
			continue // a notification
		}
		if !in.Scan() {
			return fmt.Errorf("no answer to %s: %v", r.Method, in.Err())
		}
		fmt.Fprintln(out, in.Text())
	}
	return nil
}
