package smtp

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"mime"
	"mime/quotedprintable"
	"net"
	netsmtp "net/smtp"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
)

const (
	sendTimeout = 30 * time.Second // for one mail
	maxReceived = 1 << 20          // bytes from the server for one mail, its certificates included
)

// message is one mail in plain text.
type message struct {
	to      []string
	subject string
	text    string
}

// refusedStep is an error of the server with what to do about it.
type refusedStep struct {
	err  error
	next string
}

func (e *refusedStep) Error() string { return e.err.Error() }
func (e *refusedStep) Unwrap() error { return e.err }

// sendLetter sends a mail. It uses TLS unless the settings say none. refused describes
// the recipients that the server refused, if it accepted others.
func (m *Mailer) sendLetter(ctx context.Context, s *Settings, password secret.Text, l message) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })() // ends any read or write
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	trust := &tls.Config{ServerName: s.Host, RootCAs: m.o.Roots, MinVersion: tls.VersionTLS12}
	c, err := connectSMTP(&limitedConn{Conn: conn, left: maxReceived}, s, trust)
	if err == nil {
		defer c.Close()
		err = logIn(c, s, password)
	}
	if err == nil {
		refused, err = deliver(c, s.From, l.to, l.bytes(s.From, time.Now()))
	}
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return refused, err
}

// limitedConn limits what the server may send, because package net/smtp holds a
// line in memory up to its end.
type limitedConn struct {
	net.Conn
	left int
}

func (b *limitedConn) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("the server sent more than %d bytes", maxReceived)
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// connectSMTP reads the greeting of a server and starts TLS as the settings say.
func connectSMTP(conn net.Conn, s *Settings, trust *tls.Config) (*netsmtp.Client, error) {
	if s.Security == "tls" {
		conn = tls.Client(conn, trust)
	}
	c, err := netsmtp.NewClient(conn, s.Host)
	if err != nil || s.Security != "starttls" {
		return c, err
	}
	if ok, _ := c.Extension("STARTTLS"); !ok {
		c.Close()
		return nil, &refusedStep{errors.New("the server does not offer STARTTLS"), "Choose tls, or another server."}
	}
	if err := c.StartTLS(trust); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// deliver sends a message to the recipients that the server accepts.
func deliver(c *netsmtp.Client, from string, to []string, message []byte) (refused, err error) {
	if err := c.Mail(from); err != nil {
		return nil, step("sender", "Set from to an address that this server sends for.", err)
	}
	accepted := 0
	for _, one := range to {
		if err := c.Rcpt(one); err != nil {
			const next = "Check the address, and whether the server relays for this sender."
			refused = errors.Join(refused, step("recipient "+one, next, err))
			continue
		}
		accepted++
	}
	if accepted == 0 {
		return nil, refused
	}
	w, err := c.Data()
	if err == nil {
		_, err = w.Write(message)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, step("mail", "The answer of the server says why.", err)
	}
	c.Quit() // the server has accepted the mail, so that an error does not matter
	return refused, nil
}

func step(what, next string, err error) error {
	said, ok := errors.AsType[*textproto.Error](err)
	if !ok {
		return err
	}
	return &refusedStep{fmt.Errorf("the server refused the %s: %03d %.500q", what, said.Code, said.Msg), next}
}

// logIn authenticates with PLAIN or LOGIN.
func logIn(c *netsmtp.Client, s *Settings, password secret.Text) error {
	if s.Username == "" {
		return nil
	}
	ok, ways := c.Extension("AUTH")
	var a netsmtp.Auth
	switch all := " " + strings.ToUpper(ways) + " "; {
	case ok && strings.Contains(all, " PLAIN "):
		a = netsmtp.PlainAuth("", s.Username, password.Reveal(), s.Host)
	case ok && strings.Contains(all, " LOGIN "):
		a = &loginAuth{s, password}
	default:
		return &refusedStep{
			err:  errors.New("the server offers neither PLAIN nor LOGIN authentication"),
			next: "Leave out username and password, or choose another server.",
		}
	}
	const next = "Set them again; many providers require an app password."
	return step("username or password", next, redact(c.Auth(a), s, password))
}

// redact replaces an answer that contains a part of the password, because some
// servers repeat the line that they did not understand.
func redact(err error, s *Settings, password secret.Text) error {
	if err == nil {
		return nil
	}
	code, said := 0, err.Error()
	if e, ok := errors.AsType[*textproto.Error](err); ok {
		code, said = e.Code, e.Msg
	}
	plain := password.Reveal()
	for _, proof := range []string{plain, encoded(plain), encoded("\x00" + s.Username + "\x00" + plain)} {
		if containsPart(said, proof) {
			return &textproto.Error{Code: code, Msg: "[an answer that contains the password]"}
		}
	}
	return err
}

func encoded(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// containsPart reports whether text contains 8 bytes in a row, or the end, of proof.
func containsPart(text, proof string) bool {
	const piece = 8
	for i := 0; i+piece < len(proof); i++ {
		if strings.Contains(text, proof[i:i+piece]) {
			return true
		}
	}
	return proof != "" && strings.Contains(text, proof[max(0, len(proof)-piece):])
}

// loginAuth implements AUTH LOGIN, which some servers offer instead of PLAIN: the
// server asks for the username, then for the password.
type loginAuth struct {
	s        *Settings
	password secret.Text
}

func (a *loginAuth) Start(server *netsmtp.ServerInfo) (string, []byte, error) {
	if !server.TLS && !loopback(server.Name) {
		return "", nil, errors.New("the connection is not encrypted")
	}
	return "LOGIN", nil, nil
}

func (a *loginAuth) Next(asked []byte, more bool) ([]byte, error) {
	switch what := strings.ToLower(string(asked)); {
	case !more:
		return nil, nil
	case strings.HasPrefix(what, "user"):
		return []byte(a.s.Username), nil
	case strings.HasPrefix(what, "pass"):
		return []byte(a.password.Reveal()), nil
	}
	return nil, fmt.Errorf("the server asks for %.40q", asked)
}

// bytes returns the mail in the form of RFC 5322 and MIME, in ASCII.
func (l *message) bytes(from string, now time.Time) []byte {
	_, domain, _ := strings.Cut(from, "@")
	var b bytes.Buffer
	for _, h := range [][2]string{
		{"From", "<" + from + ">"},
		{"To", "<" + strings.Join(l.to, ">, <") + ">"},
		{"Subject", mime.QEncoding.Encode("utf-8", oneLine(l.subject))},
		{"Date", now.Format("Mon, 02 Jan 2006 15:04:05 -0700")},
		{"Message-ID", "<" + rand.Text() + "@" + domain + ">"},
		{"Auto-Submitted", "auto-generated"},
		{"MIME-Version", "1.0"},
		{"Content-Type", "text/plain; charset=utf-8"},
		{"Content-Transfer-Encoding", "quoted-printable"},
	} {
		b.WriteString(h[0] + ": " + h[1] + "\r\n")
	}
	b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&b)
	q.Write([]byte(strings.ToValidUTF8(l.text, "\uFFFD"))) // into memory, which cannot fail
	q.Close()
	return b.Bytes()
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
}
