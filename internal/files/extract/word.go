package extract

import (
	"encoding/xml"
	"errors"
	"strconv"
	"strings"
)

// fromWord writes the text of the main part of a document, and its notes and comments after it. Headers and footers are
// left out, because they repeat on each page.
func fromWord(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	main := a.mainPart("word/document.xml")
	links, err := a.relations(main)
	if err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	p := &wordWriter{writer: w, links: links}
	dir := main[:strings.LastIndexByte(main, '/')+1]
	if p.styles, err = a.styles(dir + "styles.xml"); err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	if err := a.tokensAndText(main, &p.inText, p.token); err != nil {
		return err
	}
	for _, part := range []string{"footnotes", "endnotes", "comments"} {
		more := &wordWriter{writer: w, styles: p.styles}
		if err := a.tokens(dir+part+".xml", more.token); err != nil && !errors.Is(err, errNoPart) {
			return err
		}
	}
	return nil
}

// paragraphStyle is what the text of a paragraph gets from its style.
type paragraphStyle struct {
	name string // in lower case
	list bool
}

// styles returns the styles of a document by their ids, which depend on the language of the program that wrote it; their
// names do not.
func (a *archive) styles(part string) (map[string]paragraphStyle, error) {
	all := map[string]paragraphStyle{}
	id, s := "", paragraphStyle{}
	err := a.elements(part, func(t xml.StartElement) {
		switch t.Name.Local {
		case "style":
			id, s = anyAttribute(t, "styleId"), paragraphStyle{}
		case "name":
			s.name = strings.ToLower(anyAttribute(t, "val"))
			s.list = strings.HasPrefix(s.name, "list bullet") || strings.HasPrefix(s.name, "list number")
		case "outlineLvl": // a style of another name that counts as a heading
			if n, err := strconv.Atoi(anyAttribute(t, "val")); err == nil && n >= 0 && n < 9 &&
				!strings.HasPrefix(s.name, "heading") {
				s.name = "heading " + strconv.Itoa(n+1)
			}
		}
		if id != "" && len(all) < mostParts {
			all[id] = s
		}
	})
	return all, err
}

// wordWriter writes WordprocessingML. It ignores the namespaces of elements.
type wordWriter struct {
	*writer
	styles map[string]paragraphStyle
	links  map[string]relation
	inText bool
	hidden int // depth in what is shown elsewhere, too: text that was moved away, a second form of a drawing
	table  int
	cell   bool   // a cell of this row has begun
	marked bool   // the mark of this paragraph is written: that of a heading or of an item
	item   bool   // this paragraph is an item of a list
	after  bool   // the one before was an item, which the next one follows without a blank line
	joined bool   // the next paragraph continues the line
	deep   int    // level of the list item
	target string // of the link around the text
}

func (p *wordWriter) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		if p.hidden > 0 || t.Name.Local == "Fallback" || t.Name.Local == "moveFrom" {
			p.hidden++
			return nil
		}
		return p.startElement(t)
	case xml.EndElement:
		if p.hidden > 0 {
			p.hidden--
			return nil
		}
		return p.endElement(t.Name.Local)
	case xml.CharData:
		if p.inText && p.hidden == 0 {
			return p.raw(string(t))
		}
	}
	return nil
}

func (p *wordWriter) startElement(t xml.StartElement) error {
	switch name := t.Name.Local; name {
	case "t":
		p.inText = true
	case "tab":
		return p.raw("\t")
	case "noBreakHyphen":
		return p.raw("-")
	case "br", "cr":
		p.separate()
	case "p":
		p.after, p.item, p.marked, p.deep = p.item, false, false, 0
		if p.joined { // to the mark of a note
			p.joined = false
			break
		}
		p.separate()
		if p.table == 0 {
			p.paragraph()
		}
	case "pStyle":
		return p.style(anyAttribute(t, "val"))
	case "outlineLvl":
		if n, err := strconv.Atoi(anyAttribute(t, "val")); err == nil && n >= 0 && n < 9 {
			return p.heading(n + 1)
		}
	case "ilvl":
		p.deep, _ = strconv.Atoi(anyAttribute(t, "val"))
	case "numId":
		if anyAttribute(t, "val") != "0" {
			return p.listItem()
		}
	case "tbl":
		p.table++
		p.item = false
		p.paragraph()
	case "tr":
		p.newLine()
		p.cell = false
	case "tc":
		p.space = false
		if p.cell {
			return p.mark(" | ")
		}
		p.cell = true
	case "hyperlink":
		p.target = p.links[attribute(t, "relationships", "id")].external
	case "docPr":
		if text := anyAttribute(t, "descr"); text != "" {
			return p.raw(" [" + strings.Join(strings.Fields(text), " ") + "] ")
		}
	default:
		return p.note(name, t)
	}
	return nil
}

// separate ends a line, or a word in the cell of a table, whose row is one line.
func (p *wordWriter) separate() {
	if p.table == 0 {
		p.newLine()
	} else {
		p.space = p.b.Len() > 0 && p.gap == 0
	}
}

// note writes the mark that refers to a note, or that of the note itself.
func (p *wordWriter) note(name string, t xml.StartElement) error {
	id := anyAttribute(t, "id")
	switch name {
	case "footnoteReference":
		return p.raw("[^" + id + "]")
	case "endnoteReference":
		return p.raw("[^e" + id + "]")
	case "commentReference":
		return p.raw("[^c" + id + "]")
	case "footnote", "endnote":
		if anyAttribute(t, "type") != "" { // lines between text and notes
			p.hidden++
			return nil
		}
		p.paragraph()
		p.joined = true
		if name == "endnote" {
			id = "e" + id
		}
		return p.mark("[^" + id + "]: ")
	case "comment":
		p.paragraph()
		p.joined = true
		return p.mark("[^c" + id + "]: " + anyAttribute(t, "author") + ": ")
	}
	return nil
}

// style writes the mark of a heading or of a list item.
func (p *wordWriter) style(id string) error {
	s, ok := p.styles[id]
	if !ok {
		s.name = strings.ToLower(id)
	}
	if s.name == "title" {
		return p.heading(1)
	}
	level, ok := strings.CutPrefix(s.name, "heading")
	if n, err := strconv.Atoi(strings.TrimSpace(level)); ok && err == nil && n >= 1 && n <= 9 {
		return p.heading(n)
	}
	if s.list {
		if n, err := strconv.Atoi(s.name[strings.LastIndexByte(s.name, ' ')+1:]); err == nil {
			p.deep = n - 1
		}
		return p.listItem()
	}
	return nil
}

func (p *wordWriter) heading(level int) error {
	if p.marked || p.table > 0 {
		return nil
	}
	p.marked = true
	return p.mark(strings.Repeat("#", level) + " ")
}

func (p *wordWriter) listItem() error {
	if p.marked || p.table > 0 {
		return nil
	}
	p.marked, p.item = true, true
	if p.after {
		p.gap = min(p.gap, 1)
	}
	return p.mark(strings.Repeat("  ", min(max(p.deep, 0), mostNested)) + "- ")
}

func (p *wordWriter) endElement(name string) error {
	switch name {
	case "t":
		p.inText = false
	case "hyperlink":
		to := p.target
		if p.target = ""; to != "" {
			return p.raw(" (" + to + ")")
		}
	case "tbl":
		if p.table--; p.table < 0 {
			p.table = 0
		}
		p.space = false
		p.paragraph()
	}
	return nil
}
