package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/internal/files/extract"
	"gatehouse/internal/files/symbols"
	"gatehouse/tool"
)

const (
	convertTime = 10 * time.Second // for one document
	wideMost    = 16 << 20         // bytes of a file in UTF-16
	imageMost   = 5 << 20          // bytes of a picture; models take no more
	audioMost   = 12 << 20         // bytes of a sound; as base64 it has to fit into a message
)

// use makes a text that was made of the file the one that is read.
func (o *opened) use(text []byte) {
	o.s = &source{ctx: o.s.ctx, f: bytes.NewReader(text), size: int64(len(text)), head: text}
}

// convert reads a document as text. One is converted at a time, since a
// decoder that got lost works until its time is up.
func (m *files) convert(ctx context.Context, o *opened, kind extract.Kind, out *readOut) error {
	select {
	case m.converting <- struct{}{}:
		defer func() { <-m.converting }()
	case <-ctx.Done():
		return &tool.Refusal{Code: "busy", Message: "too many documents are being converted", Next: "Try again in a moment."}
	}
	ctx, cancel := context.WithTimeout(ctx, convertTime)
	defer cancel()
	text, cut, err := extract.Text(ctx, kind, o.f, o.info.Size())
	switch {
	case errors.Is(err, extract.ErrTooLarge):
		return &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("%s has %s bytes; documents of up to %s can be shown as text", o.p.Path, commas(o.info.Size()), commas(extract.MostIn))}
	case errors.Is(err, context.DeadlineExceeded):
		return &tool.Refusal{Code: "timeout", Message: fmt.Sprintf("%s could not be converted within %v", o.p.Path, convertTime)}
	case err != nil:
		return &tool.Refusal{Code: "unsupported", Message: fmt.Sprintf("%s cannot be shown as text: %v", o.p.Path, err)}
	}
	o.use([]byte(text))
	out.say(string(kind) + " shown as text")
	if cut {
		out.say("only its first " + commas(extract.MostOut) + " bytes")
	}
	return nil
}

// decode turns UTF-16 or UTF-32 into UTF-8.
func (o *opened) decode(out *readOut) error {
	w, _ := extract.WideOf(o.s.head)
	if o.info.Size() > wideMost {
		return &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("%s is %s text of %s bytes; up to %s can be decoded", o.p.Path, w.Name, commas(o.info.Size()), commas(wideMost))}
	}
	b, err := io.ReadAll(io.NewSectionReader(o.f, 0, wideMost))
	if err != nil {
		return o.p.Refuse(err)
	}
	text, lost := w.Decode(b[min(len(w.Mark), len(b)):])
	o.use(text)
	out.say(w.Name + ", shown as UTF-8")
	if lost > 0 {
		out.say(count(int64(lost), "unit") + " or odd bytes that are no characters shown as \uFFFD")
	}
	return nil
}

// outline replaces the text by what it defines.
func (o *opened) outline(out *readOut) error {
	text, err := o.s.at(make([]byte, min(o.s.size, symbols.Most)), 0)
	if err != nil {
		return o.p.Refuse(err)
	}
	all := symbols.Write(symbols.Of(out.Language, text))
	if all == "" {
		all = "[no definitions were recognised]\n"
	}
	o.use([]byte(all))
	out.say("outline: line numbers are those of the file")
	if o.s.size > symbols.Most {
		out.say("of its first " + commas(symbols.Most) + " bytes")
	}
	return nil
}

// media shows a picture or a sound as such.
func (o *opened) media(out *readOut) (bool, error) {
	kind := mediaKind(o.p.Name, o.s.head)
	major, _, _ := strings.Cut(kind, "/")
	most := map[string]int64{"image": imageMost, "audio": audioMost}[major]
	if most == 0 {
		return false, nil
	}
	if o.info.Size() > most {
		return false, &tool.Refusal{Code: "too_large", Message: fmt.Sprintf("%s is %s of %s bytes; up to %s are shown", o.p.Path, kind, commas(o.info.Size()), commas(most))}
	}
	data, err := io.ReadAll(io.NewSectionReader(o.f, 0, most))
	if err != nil {
		return false, o.p.Refuse(err)
	}
	block := tool.Image(kind, data)
	if major == "audio" {
		block = tool.Audio(kind, data)
	}
	out.media = []tool.Content{block}
	out.Content = fmt.Sprintf("%s, %s bytes", kind, commas(o.info.Size()))
	return true, nil
}

// mediaKind is the type of a picture or sound as clients know it.
func mediaKind(name string, head []byte) string {
	kind, _, _ := strings.Cut(http.DetectContentType(head), ";")
	switch kind {
	case "image/png", "image/jpeg", "image/gif", "image/webp", "audio/mpeg", "audio/aiff", "audio/midi":
		return kind
	case "audio/wave":
		return "audio/wav"
	case "application/ogg":
		return "audio/ogg"
	case "application/octet-stream", "video/mp4":
		switch strings.ToLower(filepath.Ext(name)) {
		case ".mp3":
			return "audio/mpeg"
		case ".flac":
			return "audio/flac"
		case ".m4a":
			return "audio/mp4"
		}
	}
	return ""
}
