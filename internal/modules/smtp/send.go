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
	wire "net/smtp"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/access/secret"
)

const (
	sendTime = 30 * time.Second // that sending one mail takes at most
	saysMost = 1 << 20          // bytes that a server sends for one mail, its certificates included
)

// letter is one mail.
type letter struct {
	to      []string
	subject string
	text    string
}

// answered is an error of the server, in a step of which somebody can do
// something about it.
type answered struct {
	err  error
	next string
}

func (e *answered) Error() string { return e.err.Error() }
func (e *answered) Unwrap() error { return e.err }

// send hands a letter to a server. Nothing is sent in the clear unless the
// settings say so. refused is about those who do not get it while others do.
func (o *Office) send(ctx context.Context, s *Settings, password secret.Text, l letter) (refused, err error) {
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(s.Host, strconv.Itoa(s.Port)))
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })() // whatever it is waiting for
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		conn.SetDeadline(deadline)
	}
	trust := &tls.Config{ServerName: s.Host, RootCAs: o.o.Roots, MinVersion: tls.VersionTLS12}
	c, err := greet(&brief{Conn: conn, left: saysMost}, s, trust)
	if err == nil {
		defer c.Close()
		err = logIn(c, s, password)
	}
	if err == nil {
		refused, err = hand(c, s.From, l.to, l.message(s.From, time.Now()))
	}
	if ctx.Err() != nil && err != nil {
		err = context.Cause(ctx)
	}
	return refused, err
}

// brief is a connection to a server that may say only so much: what it says is
// gathered up to the end of its line.
type brief struct {
	net.Conn
	left int
}

func (b *brief) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, fmt.Errorf("it says more than %d bytes", saysMost)
	}
	n, err := b.Conn.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// greet begins a conversation, encrypted where it shall be.
func greet(conn net.Conn, s *Settings, trust *tls.Config) (*wire.Client, error) {
	if s.Security == "tls" {
		conn = tls.Client(conn, trust)
	}
	c, err := wire.NewClient(conn, s.Host)
	if err != nil || s.Security != "starttls" {
		return c, err
	}
	if ok, _ := c.Extension("STARTTLS"); !ok {
		c.Close()
		return nil, &answered{errors.New("it does not offer starttls"), "Choose tls, or a server that encrypts."}
	}
	if err := c.StartTLS(trust); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// hand gives a server a message, for as many receivers as it takes.
func hand(c *wire.Client, from string, to []string, message []byte) (refused, err error) {
	if err := c.Mail(from); err != nil {
		return nil, step("sender", "It has to be an address this server sends for.", err)
	}
	taken := 0
	for _, one := range to {
		if err := c.Rcpt(one); err != nil {
			refused = errors.Join(refused, step("receiver "+one, "Check the address, and whether the server relays for this sender.", err))
			continue
		}
		taken++
	}
	if taken == 0 {
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
		return nil, step("mail", "The server says why.", err)
	}
	c.Quit() // it has the mail: how it says goodbye does not matter
	return refused, nil
}

func step(what, next string, err error) error {
	said, ok := errors.AsType[*textproto.Error](err)
	if !ok {
		return err
	}
	return &answered{fmt.Errorf("it refuses the %s: %03d %.500q", what, said.Code, said.Msg), next}
}

// logIn proves who we are, in a way that the server understands.
func logIn(c *wire.Client, s *Settings, password secret.Text) error {
	if s.Username == "" {
		return nil
	}
	ok, ways := c.Extension("AUTH")
	var a wire.Auth
	switch all := " " + strings.ToUpper(ways) + " "; {
	case ok && strings.Contains(all, " PLAIN "):
		a = wire.PlainAuth("", s.Username, password.Reveal(), s.Host)
	case ok && strings.Contains(all, " LOGIN "):
		a = &loginAuth{s, password}
	default:
		return &answered{errors.New("it offers no way to log in that we know"), "Leave out username and password, or choose a server with PLAIN or LOGIN."}
	}
	return step("username or password", "Set them again; many providers want a password made for programs.", hush(c.Auth(a), s, password))
}

// hush takes an answer away in which a server repeats what proves who we are,
// as some do with the line they did not understand.
func hush(err error, s *Settings, password secret.Text) error {
	if err == nil {
		return nil
	}
	code, said := 0, err.Error()
	if e, ok := errors.AsType[*textproto.Error](err); ok {
		code, said = e.Code, e.Msg
	}
	plain := password.Reveal()
	for _, proof := range []string{plain, encoded(plain), encoded("\x00" + s.Username + "\x00" + plain)} {
		if repeats(said, proof) {
			return &textproto.Error{Code: code, Msg: "[an answer with the password in it]"}
		}
	}
	return err
}

func encoded(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// repeats reports whether a piece of a proof is in a text.
func repeats(text, proof string) bool {
	const piece = 8
	for i := 0; i+piece < len(proof); i++ {
		if strings.Contains(text, proof[i:i+piece]) {
			return true
		}
	}
	return proof != "" && strings.Contains(text, proof[max(0, len(proof)-piece):])
}

// loginAuth is the older way in which some servers ask for a name and then for
// a password.
type loginAuth struct {
	s        *Settings
	password secret.Text
}

func (a *loginAuth) Start(server *wire.ServerInfo) (string, []byte, error) {
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
	return nil, fmt.Errorf("it asks for %.40q", asked)
}

// message writes a letter as RFC 5322 and MIME want it, in ASCII.
func (l *letter) message(from string, now time.Time) []byte {
	_, domain, _ := strings.Cut(from, "@")
	var b bytes.Buffer
	for _, h := range [][2]string{
		{"From", "<" + from + ">"}, {"To", "<" + strings.Join(l.to, ">, <") + ">"},
		{"Subject", mime.QEncoding.Encode("utf-8", oneLine(l.subject))},
		{"Date", now.Format("Mon, 02 Jan 2006 15:04:05 -0700")},
		{"Message-ID", "<" + rand.Text() + "@" + domain + ">"}, {"Auto-Submitted", "auto-generated"}, {"MIME-Version", "1.0"},
		{"Content-Type", "text/plain; charset=utf-8"}, {"Content-Transfer-Encoding", "quoted-printable"},
	} {
		b.WriteString(h[0] + ": " + h[1] + "\r\n")
	}
	b.WriteString("\r\n")
	q := quotedprintable.NewWriter(&b)
	q.Write([]byte(strings.ToValidUTF8(l.text, "\uFFFD"))) // to memory
	q.Close()
	return b.Bytes()
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(s, "\uFFFD")), " ")
}
