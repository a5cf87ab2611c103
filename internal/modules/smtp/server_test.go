package smtp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"io"
	"mime"
	"mime/quotedprintable"
	"net"
	"net/http/httptest"
	"net/mail"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
)

// fakeServer is a small mail server on this machine.
type fakeServer struct {
	t         *testing.T
	port      int
	cert      tls.Certificate
	roots     *x509.CertPool
	tls       bool   // from the start
	starttls  bool   // is offered
	auth      string // ways to log in that are offered; "" means none
	user      string
	password  string
	refuse    string // a command that is refused, with its beginning
	silent    bool   // never answers
	endless   bool   // never comes to the end of its greeting
	echoes    bool   // answers a login with what it was told
	callers   sync.WaitGroup
	mu        sync.Mutex
	mails     []received
	encrypted []bool // of each login
}

// received is a mail as it arrived.
type received struct {
	from    string
	to      []string
	header  mail.Header
	subject string
	text    string
	raw     string
}

// open starts the server on 127.0.0.1.
func (p *fakeServer) open(t *testing.T) *fakeServer {
	t.Helper()
	p.t = t
	web := httptest.NewUnstartedServer(nil) // for its certificate, which is for 127.0.0.1
	web.StartTLS()
	p.cert, p.roots = web.TLS.Certificates[0], x509.NewCertPool()
	p.roots.AddCert(web.Certificate())
	web.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.port = l.Addr().(*net.TCPAddr).Port
	p.callers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.callers.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); p.callers.Wait() })
	return p
}

func (p *fakeServer) all() []received {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mails)
}

func (p *fakeServer) serve(c net.Conn) {
	defer func() { c.Close() }()
	if p.silent {
		io.Copy(io.Discard, c)
		return
	}
	if p.endless {
		for line := []byte("220-" + strings.Repeat("hello ", 1000) + "\r\n"); ; {
			if _, err := c.Write(line); err != nil {
				return
			}
		}
	}
	secured := p.tls
	if p.tls {
		c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{p.cert}})
	}
	w := textproto.NewConn(c)
	w.PrintfLine("220 mail server ESMTP")
	var m received
	for {
		line, err := w.ReadLine()
		if err != nil {
			return
		}
		verb := strings.ToUpper(line)
		switch {
		case p.refuse != "" && strings.HasPrefix(verb, p.refuse):
			w.PrintfLine("550 5.7.1 not here")
		case strings.HasPrefix(verb, "EHLO"):
			w.PrintfLine("250-mail server")
			if p.starttls && !secured {
				w.PrintfLine("250-STARTTLS")
			}
			if p.auth != "" {
				w.PrintfLine("250-AUTH %s", p.auth)
			}
			w.PrintfLine("250 8BITMIME")
		case verb == "STARTTLS":
			w.PrintfLine("220 go on")
			c = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{p.cert}})
			w, secured = textproto.NewConn(c), true
		case strings.HasPrefix(verb, "AUTH "):
			p.mu.Lock()
			p.encrypted = append(p.encrypted, secured)
			p.mu.Unlock()
			switch {
			case p.logIn(w, line):
				w.PrintfLine("235 welcome")
			case p.echoes:
				w.PrintfLine("535 5.7.8 what is %s?", line)
			default:
				w.PrintfLine("535 5.7.8 wrong")
			}
		case strings.HasPrefix(verb, "MAIL FROM:"):
			m = received{from: between(line)}
			w.PrintfLine("250 ok")
		case strings.HasPrefix(verb, "RCPT TO:"):
			m.to = append(m.to, between(line))
			w.PrintfLine("250 ok")
		case verb == "DATA":
			w.PrintfLine("354 say it")
			raw, err := io.ReadAll(w.DotReader())
			if err != nil {
				return
			}
			p.keep(m, raw)
			w.PrintfLine("250 kept")
		case verb == "QUIT":
			w.PrintfLine("221 bye")
			return
		default:
			w.PrintfLine("500 what?")
		}
	}
}

func between(line string) string {
	_, rest, _ := strings.Cut(line, "<")
	address, _, _ := strings.Cut(rest, ">")
	return address
}

func (p *fakeServer) logIn(w *textproto.Conn, line string) bool {
	way, rest, _ := strings.Cut(strings.TrimPrefix(line, "AUTH "), " ")
	said := func(question string) string {
		w.PrintfLine("334 %s", base64.StdEncoding.EncodeToString([]byte(question)))
		answer, _ := w.ReadLine()
		b, _ := base64.StdEncoding.DecodeString(answer)
		return string(b)
	}
	if way == "LOGIN" {
		user := said("Username:")
		return said("Password:") == p.password && user == p.user
	}
	b, _ := base64.StdEncoding.DecodeString(rest)
	return string(b) == "\x00"+p.user+"\x00"+p.password
}

func (p *fakeServer) keep(m received, raw []byte) {
	read, err := mail.ReadMessage(bufio.NewReader(bytes.NewReader(raw)))
	if err != nil {
		p.t.Errorf("%v in %s", err, raw)
		return
	}
	m.header, m.raw = read.Header, string(raw)
	m.subject, _ = new(mime.WordDecoder).DecodeHeader(read.Header.Get("Subject"))
	text, err := io.ReadAll(quotedprintable.NewReader(read.Body))
	if err != nil {
		p.t.Error(err)
	}
	m.text = string(text)
	p.mu.Lock()
	p.mails = append(p.mails, m)
	p.mu.Unlock()
}
