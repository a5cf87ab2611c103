package extract

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/textproto"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
)

const (
	mostMailDepth = 20      // parts in parts
	mostMailParts = 1000    // of one message
	mostMailText  = 8 << 20 // bytes of one part
)

// message is a mail while it is converted.
type message struct {
	w     *writer
	parts int
}

// fromMail writes the headers that readers see, the texts, and the names of attachments.
func fromMail(w *writer, r io.Reader) error {
	m, err := mail.ReadMessage(r)
	if err != nil {
		return fmt.Errorf("the mail is damaged: %w", err)
	}
	out := &message{w: w}
	if err := out.headers(m.Header); err != nil {
		return err
	}
	return out.part(textproto.MIMEHeader(m.Header), m.Body, 0)
}

func (m *message) headers(h mail.Header) error {
	for _, name := range []string{"Subject", "From", "To", "Cc", "Date"} {
		if v := decodeHeader(h.Get(name)); v != "" {
			m.w.newLine()
			if err := m.w.raw(name + ": " + v); err != nil {
				return err
			}
		}
	}
	m.w.paragraph()
	return nil
}

func decodeHeader(s string) string {
	d := mime.WordDecoder{CharsetReader: func(set string, r io.Reader) (io.Reader, error) {
		b, err := io.ReadAll(r)
		return strings.NewReader(decodeCharset(set, b)), err
	}}
	if text, err := d.DecodeHeader(s); err == nil {
		s = text
	}
	return strings.Join(strings.Fields(s), " ")
}

// decodeCharset returns a text as UTF-8. Of a character set that is unknown, ASCII alone is read.
func decodeCharset(name string, b []byte) string {
	name = strings.ToLower(name)
	wide := strings.HasPrefix(name, "iso-2022") || strings.HasPrefix(name, "utf-16") // whose bytes may look like UTF-8
	if set, _ := charset.Lookup(name); set != nil && (wide || !utf8.Valid(b)) {
		if text, err := set.NewDecoder().Bytes(b); err == nil {
			b = text
		}
	}
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// part writes one part of a message.
func (m *message) part(h textproto.MIMEHeader, body io.Reader, depth int) error {
	if m.parts++; m.parts > mostMailParts || depth > mostMailDepth {
		return m.w.raw("[the rest has too many parts]")
	}
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		kind = "text/plain"
	}
	if strings.HasPrefix(kind, "multipart/") && params["boundary"] != "" {
		return m.multipart(multipart.NewReader(body, params["boundary"]), kind == "multipart/alternative", depth)
	}
	disposition, dparams, _ := mime.ParseMediaType(h.Get("Content-Disposition"))
	name := dparams["filename"]
	if name == "" {
		name = params["name"]
	}
	m.w.paragraph()
	switch {
	case kind == "message/rfc822":
		inner, err := mail.ReadMessage(body)
		if err != nil {
			return m.w.raw("[a mail that is damaged]")
		}
		if err := m.headers(inner.Header); err != nil {
			return err
		}
		return m.part(textproto.MIMEHeader(inner.Header), inner.Body, depth+1)
	case disposition == "attachment" || !strings.HasPrefix(kind, "text/"):
		err := m.w.raw(fmt.Sprintf("[attachment %s, %s]", decodeHeader(name), kind))
		if err != nil || kind != "text/plain" && kind != "text/csv" && kind != "text/markdown" {
			return err
		}
		m.w.newLine()
	}
	b, err := readPart(h.Get("Content-Transfer-Encoding"), body)
	if err != nil && len(b) == 0 {
		return m.w.raw("[a part that is damaged]")
	}
	text := decodeCharset(params["charset"], b)
	if kind == "text/html" {
		return fromHTML(m.w, strings.NewReader(text), false)
	}
	return m.w.raw(strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n")))
}

func readPart(encoding string, r io.Reader) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "base64":
		r = base64.NewDecoder(base64.StdEncoding, r)
	case "quoted-printable":
		r = quotedprintable.NewReader(r)
	}
	return io.ReadAll(io.LimitReader(r, mostMailText))
}

// multipart writes the parts of a part. Of alternatives it writes the plain text, or else the last one.
func (m *message) multipart(r *multipart.Reader, alternative bool, depth int) error {
	written := m.w.b.Len()
	var last func() error
	for {
		p, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if m.w.b.Len() == written && last == nil {
				return fmt.Errorf("the mail is damaged: %w", err)
			}
			break
		}
		kind, _, err := mime.ParseMediaType(p.Header.Get("Content-Type"))
		if !alternative || err != nil || kind == "text/plain" {
			before := m.w.b.Len()
			if err := m.part(p.Header, p, depth+1); err != nil || alternative && m.w.b.Len() > before {
				return err
			}
			continue
		}
		b, err := io.ReadAll(io.LimitReader(p, MostIn))
		if err != nil {
			break
		}
		last = func() error { return m.part(p.Header, strings.NewReader(string(b)), depth+1) }
	}
	if last != nil {
		return last()
	}
	return nil
}
