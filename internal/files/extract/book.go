package extract

import (
	"encoding/xml"
	"errors"
	"net/url"
	"path"
	"strings"
)

// fromBook writes the chapters of a book in their order.
func fromBook(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	main := ""
	err = a.elements("META-INF/container.xml", func(t xml.StartElement) {
		if t.Name.Local == "rootfile" && main == "" {
			main = attribute(t, "", "full-path")
		}
	})
	if err != nil {
		return err
	}
	locked, err := a.locked()
	if err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	if err := a.bookTitle(main); err != nil {
		return err
	}
	files := map[string]string{}
	var chapters []string
	err = a.elements(main, func(t xml.StartElement) {
		switch t.Name.Local {
		case "item":
			name, err := url.PathUnescape(attribute(t, "", "href"))
			kind := attribute(t, "", "media-type")
			if err == nil && (kind == "application/xhtml+xml" || kind == "text/html") {
				files[attribute(t, "", "id")] = path.Join(path.Dir(main), name)
			}
		case "itemref":
			chapters = append(chapters, attribute(t, "", "idref"))
		}
	})
	if err != nil {
		return err
	}
	for _, id := range chapters {
		if locked[files[id]] {
			return errors.New("the book is protected: its chapters are encrypted")
		}
		r, c, err := a.open(files[id])
		if errors.Is(err, errNoPart) {
			continue
		}
		if err != nil {
			return err
		}
		w.paragraph()
		err = fromHTML(w, &chapter{r}, false)
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// locked returns the parts that are encrypted.
func (a *archive) locked() (map[string]bool, error) {
	all := map[string]bool{}
	err := a.elements("META-INF/encryption.xml", func(t xml.StartElement) {
		if t.Name.Local == "CipherReference" && len(all) < mostParts {
			name, _ := url.PathUnescape(attribute(t, "", "URI"))
			all[path.Clean(name)] = true
		}
	})
	return all, err
}

// bookTitle writes the title and the authors of a book.
func (a *archive) bookTitle(main string) error {
	what := ""
	return a.tokens(main, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			what = map[string]string{"title": "Title", "creator": "Author"}[t.Name.Local]
		case xml.EndElement:
			what = ""
		case xml.CharData:
			if text := strings.Join(strings.Fields(string(t)), " "); what != "" && text != "" {
				a.w.newLine()
				return a.w.raw(what + ": " + text)
			}
		}
		return nil
	})
}

// chapter reads a part whose tokens another decoder limits.
type chapter struct{ r *tokenReader }

func (c *chapter) Read(b []byte) (int, error) {
	c.r.token = 0
	return c.r.Read(b)
}
