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
	convertTimeout = 10 * time.Second // for one document
	maxWide        = 16 << 20         // bytes of a file in UTF-16 or UTF-32
	maxImage       = 5 << 20          // bytes of an image; models accept no more
	maxAudio       = 12 << 20         // bytes of audio; as base64 it must fit into a message
)

// replaceSource makes text, which was made from the file, the text that is read.
func (o *opened) replaceSource(text []byte) {
	o.s = &source{ctx: o.s.ctx, f: bytes.NewReader(text), size: int64(len(text)), head: text}
}

// convert reads a document as text.
func (o *opened) convert(ctx context.Context, kind extract.Kind, out *readOut) error {
	text, cut, err := extract.Text(ctx, convertTimeout, kind, o.f, o.info.Size())
	switch {
	case errors.Is(err, extract.ErrBusy):
		return &tool.Refusal{Code: tool.CodeBusy, Message: err.Error(), Next: "Call the tool again."}
	case errors.Is(err, extract.ErrTooLarge):
		return &tool.Refusal{
			Code: tool.CodeTooLarge,
			Message: fmt.Sprintf(
				"%s has %s bytes; the largest document that can be shown as text has %s", o.p.Path,
				groupDigits(o.info.Size()), groupDigits(extract.MostIn),
			),
		}
	case errors.Is(err, context.DeadlineExceeded):
		return &tool.Refusal{
			Code:    tool.CodeTimeout,
			Message: fmt.Sprintf("%s could not be converted within %v", o.p.Path, convertTimeout),
		}
	case err != nil:
		return &tool.Refusal{Code: tool.CodeUnsupported,
			Message: fmt.Sprintf("%s cannot be shown as text: %v", o.p.Path, err)}
	}
	o.replaceSource([]byte(text))
	out.addNote(string(kind) + " shown as text")
	if cut {
		out.addNote("only its first " + groupDigits(extract.MostOut) + " bytes")
	}
	return nil
}

// decodeWide converts UTF-16 or UTF-32 to UTF-8.
func (o *opened) decodeWide(out *readOut) error {
	w, _ := extract.WideOf(o.s.head)
	if o.info.Size() > maxWide {
		return &tool.Refusal{
			Code: tool.CodeTooLarge,
			Message: fmt.Sprintf(
				"%s is %s text of %s bytes; at most %s bytes can be decoded", o.p.Path, w.Name,
				groupDigits(o.info.Size()), groupDigits(maxWide),
			),
		}
	}
	b, err := io.ReadAll(io.NewSectionReader(o.f, 0, maxWide))
	if err != nil {
		return o.p.Refuse(err)
	}
	text, lost := w.Decode(b[min(len(w.Mark), len(b)):])
	o.replaceSource(text)
	out.addNote(w.Name + ", shown as UTF-8")
	if lost > 0 {
		out.addNote(plural(int64(lost), "unit") + " or bytes that are not characters shown as \uFFFD")
	}
	return nil
}

// outline replaces the text by the list of its definitions.
func (o *opened) outline(out *readOut) error {
	text, err := o.s.readAt(make([]byte, min(o.s.size, symbols.Most)), 0)
	if err != nil {
		return o.p.Refuse(err)
	}
	all := symbols.Write(symbols.Of(out.Language, text))
	if all == "" {
		all = "[no definitions found]\n"
	}
	o.replaceSource([]byte(all))
	out.addNote("outline with the line numbers of the file")
	if o.s.size > symbols.Most {
		out.addNote("of its first " + groupDigits(symbols.Most) + " bytes")
	}
	return nil
}

// media returns an image or audio as such. It reports false if the file is
// neither.
func (o *opened) media(out *readOut) (bool, error) {
	kind := mediaKind(o.p.Name, o.s.head)
	major, _, _ := strings.Cut(kind, "/")
	most := map[string]int64{"image": maxImage, "audio": maxAudio}[major]
	if most == 0 {
		return false, nil
	}
	if o.info.Size() > most {
		return false, &tool.Refusal{
			Code: tool.CodeTooLarge,
			Message: fmt.Sprintf(
				"%s is %s of %s bytes; at most %s bytes can be shown", o.p.Path, kind, groupDigits(o.info.Size()),
				groupDigits(most),
			),
		}
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
	out.Content = fmt.Sprintf("%s, %s bytes", kind, groupDigits(o.info.Size()))
	return true, nil
}

// mediaKind returns the media type of an image or audio file as clients expect
// it, or "".
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
