package extract

import (
	"bufio"
	"bytes"
	"io"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
)

// mostTag limits the bytes of one tag, comment or run of text.
const mostTag = 4 << 20

// unseen are the elements whose content a browser does not show.
var unseen = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Template: true, atom.Noscript: true, atom.Svg: true, atom.Head: true,
	atom.Iframe: true, atom.Object: true,
}

// An element of blocks is a paragraph of its own, one of rows a line.
var (
	blocks = map[atom.Atom]bool{
		atom.P: true, atom.Div: true, atom.Section: true, atom.Article: true, atom.Header: true, atom.Footer: true,
		atom.Main: true, atom.Nav: true,
		atom.Aside: true, atom.Ul: true, atom.Ol: true, atom.Dl: true, atom.Table: true, atom.Blockquote: true,
		atom.Form: true, atom.Figure: true,
		atom.H1: true, atom.H2: true, atom.H3: true, atom.H4: true, atom.H5: true, atom.H6: true, atom.Pre: true,
		atom.Hr: true, atom.Details: true,
	}
	rows = map[atom.Atom]bool{
		atom.Br: true, atom.Tr: true, atom.Li: true, atom.Dt: true, atom.Dd: true, atom.Option: true,
		atom.Caption: true, atom.Summary: true,
	}
)

// pageWriter writes the text of a web page, tag by tag.
type pageWriter struct {
	*writer
	hidden   int       // number of open unseen elements
	hiding   atom.Atom // the outermost of them
	title    bool
	titled   bool     // the title is wanted
	cell     bool     // a cell of this row was written
	links    []string // targets of the open a elements
	numbered []int    // the last number of each open list, or -1
}

// fromPage writes the text of a web page in the character set that it names, or else in UTF-8.
func fromPage(w *writer, r io.Reader) error {
	b := bufio.NewReaderSize(r, 4<<10)
	head, err := b.Peek(1 << 10)
	if err != nil && err != io.EOF {
		return err
	}
	set, name, certain := charset.DetermineEncoding(head, "text/html")
	declared := certain || bytes.Contains(bytes.ToLower(head), []byte("charset"))
	if name != "utf-8" && (declared || !utf8.Valid(head[:max(0, len(head)-utf8.UTFMax)])) {
		return fromHTML(w, set.NewDecoder().Reader(b), true)
	}
	return fromHTML(w, b, true)
}

// fromHTML writes the text that a browser shows, with the title of the page if it is wanted.
func fromHTML(w *writer, r io.Reader, titled bool) error {
	p := &pageWriter{writer: w, titled: titled}
	z := html.NewTokenizer(r)
	z.SetMaxBuf(mostTag)
	for {
		kind := z.Next()
		var err error
		switch kind {
		case html.ErrorToken:
			if z.Err() == io.EOF {
				return nil
			}
			return z.Err()
		case html.TextToken:
			if p.hidden == 0 || p.title {
				err = p.writeWords(string(z.Text()))
			}
		case html.StartTagToken, html.SelfClosingTagToken:
			err = p.openTag(z, kind == html.SelfClosingTagToken)
		case html.EndTagToken:
			name, _ := z.TagName()
			err = p.closeTag(atom.Lookup(name))
		}
		if err != nil {
			return err
		}
	}
}

func (p *pageWriter) openTag(z *html.Tokenizer, closed bool) error {
	name, more := z.TagName()
	tag := atom.Lookup(name)
	attr := ""
	for more {
		var key, value []byte
		key, value, more = z.TagAttr()
		if k := string(key); k == "href" && tag == atom.A || k == "alt" && tag == atom.Img {
			attr = string(value)
		}
	}
	if unseen[tag] && !closed {
		if p.hidden == 0 {
			p.hiding = tag
		}
		if tag == p.hiding {
			p.hidden++
		}
	}
	if p.hidden > 0 {
		p.title = tag == atom.Title && p.titled
		return nil
	}
	return p.startTag(tag, attr)
}

// startTag writes the text for a start tag.
func (p *pageWriter) startTag(tag atom.Atom, attr string) error {
	switch {
	case blocks[tag]:
		p.paragraph()
	case rows[tag]:
		p.newLine()
	}
	switch tag {
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		return p.mark(strings.Repeat("#", int(tag.String()[1]-'0')) + " ")
	case atom.Ul, atom.Menu:
		p.numbered = append(p.numbered, -1)
	case atom.Ol:
		p.numbered = append(p.numbered, 0)
	case atom.Li:
		return p.item()
	case atom.Td, atom.Th:
		if p.cell {
			return p.raw(" | ")
		}
		p.cell = true
	case atom.Tr:
		p.cell = false
	case atom.Pre:
		err := p.raw("\n")
		p.pre = true
		return err
	case atom.A:
		p.links = append(p.links, attr)
	case atom.Img:
		if attr != "" {
			return p.writeWords(" [" + attr + "] ")
		}
	case atom.Hr:
		err := p.raw("---")
		p.paragraph()
		return err
	}
	return nil
}

const mostNested = 100 // levels of lists that are indented

func (p *pageWriter) item() error {
	depth := len(p.numbered)
	if depth == 0 {
		return p.mark("- ")
	}
	sign := "- "
	if last := &p.numbered[depth-1]; *last >= 0 {
		*last++
		sign = itoa(*last) + ". "
	}
	return p.mark(strings.Repeat("  ", min(depth-1, mostNested)) + sign)
}

func (p *pageWriter) closeTag(tag atom.Atom) error {
	if p.hidden > 0 {
		p.closeHidden(tag)
		return nil
	}
	var err error
	switch tag {
	case atom.Pre:
		p.pre = false
	case atom.Ul, atom.Ol, atom.Menu:
		if n := len(p.numbered); n > 0 {
			p.numbered = p.numbered[:n-1]
		}
	case atom.A:
		err = p.link()
	}
	switch {
	case blocks[tag]:
		p.paragraph()
	case rows[tag]:
		p.newLine()
	}
	return err
}

func (p *pageWriter) closeHidden(tag atom.Atom) {
	if tag == atom.Title {
		p.title = false
		p.paragraph()
	}
	if tag == p.hiding {
		p.hidden--
	}
	if tag == atom.Body || tag == atom.Html {
		p.hidden = 0 // an element was not closed
	}
}

// link writes the target of a link, unless it is relative or too long.
func (p *pageWriter) link() error {
	n := len(p.links)
	if n == 0 {
		return nil
	}
	to := p.links[n-1]
	p.links = p.links[:n-1]
	if !strings.Contains(to, "://") || len(to) > 300 || p.pre {
		return nil
	}
	p.space = true
	return p.raw("(" + to + ")")
}
