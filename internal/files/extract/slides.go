package extract

import (
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// fromSlides writes each slide below its number, in their order: its title as a heading, its texts, tables and the values
// of its charts, and the notes of the speaker.
func fromSlides(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	slides, err := a.children(a.mainPart("ppt/presentation.xml"), "sldId")
	if err != nil {
		return err
	}
	for i, s := range slides {
		w.paragraph()
		if err := w.raw(fmt.Sprintf("[page %d]", i+1)); err != nil {
			return err
		}
		w.newLine()
		if err := a.slide(s.part, i+1); err != nil {
			return err
		}
	}
	return nil
}

// slide writes one slide and what belongs to it.
func (a *archive) slide(part string, number int) error {
	links, err := a.relations(part)
	if err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	s := &slideWriter{writer: a.w, links: links, number: number}
	if err := a.tokensAndText(part, &s.inText, s.token); err != nil {
		return err
	}
	for _, id := range s.charts {
		if err := a.chart(links[id].part); err != nil && !errors.Is(err, errNoPart) {
			return err
		}
	}
	for _, r := range links {
		if r.kind != "notesSlide" {
			continue
		}
		notes := &slideWriter{writer: a.w, notes: true}
		if err := a.tokens(r.part, notes.token); err != nil && !errors.Is(err, errNoPart) {
			return err
		}
	}
	return nil
}

// chart writes the names and values of a chart, which it has beside its picture.
func (a *archive) chart(part string) error {
	inText, begun := false, false
	a.w.paragraph()
	return a.tokens(part, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "v", "t":
				inText = true
			case "ser", "title":
				a.w.newLine()
				begun = false
			}
		case xml.EndElement:
			inText = false
		case xml.CharData:
			text := strings.Join(strings.Fields(string(t)), " ")
			if !inText || text == "" {
				return nil
			}
			if begun {
				text = " | " + text
			} else {
				text = "chart: " + text
			}
			begun = true
			return a.w.raw(text)
		}
		return nil
	})
}

// slideWriter writes PresentationML.
type slideWriter struct {
	*writer
	links  map[string]relation
	number int
	headed bool     // the heading of the slide is written
	charts []string // ids
	notes  bool     // these are the notes of a slide, of which the body alone is written
	begun  bool     // the word that begins notes is written
	hidden int      // depth in a second form of what is shown, or in a number that changes

	place  string // what the shape is for: title, body, "" for a shape of its own
	inText bool
	table  bool
	cell   bool // a cell of this row has begun
	level  int
	marked bool // the mark of this paragraph is written
	target string
}

func (s *slideWriter) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		if s.hidden > 0 || t.Name.Local == "Fallback" ||
			t.Name.Local == "fld" && attribute(t, "", "type") == "slidenum" {
			s.hidden++
			return nil
		}
		return s.startElement(t)
	case xml.EndElement:
		if s.hidden > 0 {
			s.hidden--
			return nil
		}
		return s.endElement(t.Name.Local)
	case xml.CharData:
		if s.inText && s.hidden == 0 && (!s.notes || s.place == "body") && len(t) > 0 {
			if err := s.beginParagraph(); err != nil {
				return err
			}
			return s.raw(string(t))
		}
	}
	return nil
}

func (s *slideWriter) startElement(t xml.StartElement) error {
	switch t.Name.Local {
	case "t":
		s.inText = true
	case "sp", "graphicFrame", "pic":
		s.place = ""
		s.paragraph()
	case "ph":
		if s.place = attribute(t, "", "type"); s.place == "" || s.place == "obj" {
			s.place = "body"
		}
	case "p":
		s.marked, s.level = false, 0
		s.separate()
	case "br":
		s.separate()
	case "pPr":
		s.level, _ = strconv.Atoi(attribute(t, "", "lvl"))
	case "tbl":
		s.table = true
		s.paragraph()
	case "tr":
		s.newLine()
		s.cell = false
	case "tc":
		s.space = false
		if s.cell {
			return s.mark(" | ")
		}
		s.cell = true
	case "hlinkClick":
		if s.inText = false; s.target == "" {
			s.target = s.links[attribute(t, "relationships", "id")].external
		}
	case "chart":
		if id := attribute(t, "relationships", "id"); id != "" && !slices.Contains(s.charts, id) {
			s.charts = append(s.charts, id)
		}
	case "cNvPr":
		if text := strings.Join(strings.Fields(attribute(t, "", "descr")), " "); text != "" && !s.notes {
			s.paragraph()
			return s.raw("[" + text + "]")
		}
	}
	return nil
}

// separate ends a line, or a word in the cell of a table, whose row is one line, and in a title.
func (s *slideWriter) separate() {
	if s.table || s.marked && strings.HasSuffix(strings.ToLower(s.place), "title") {
		s.space = s.b.Len() > 0 && s.gap == 0
	} else {
		s.newLine()
	}
}

// beginParagraph writes the mark of a title or of a point.
func (s *slideWriter) beginParagraph() error {
	if s.marked || s.table && s.headed {
		return nil
	}
	title := s.place == "title" || s.place == "ctrTitle"
	if !s.headed && !s.notes && !title { // its text is not below the title of the slide before
		s.paragraph()
		if err := s.raw("# Slide " + strconv.Itoa(s.number)); err != nil {
			return err
		}
		s.paragraph()
	}
	if s.headed = true; s.table {
		return nil
	}
	s.marked = true
	switch {
	case s.notes && !s.begun:
		s.begun = true
		s.paragraph()
		return s.mark("Notes: ")
	case s.notes:
	case title:
		return s.mark("# ")
	case s.place == "body":
		return s.mark(strings.Repeat("  ", min(max(s.level, 0), mostNested)) + "- ")
	}
	return nil
}

func (s *slideWriter) endElement(name string) error {
	switch name {
	case "t":
		s.inText = false
	case "r":
		to := s.target
		if s.target = ""; to != "" && strings.Contains(to, "://") {
			return s.raw(" (" + to + ")")
		}
	case "tbl":
		s.table = false
		s.space = false
		s.paragraph()
	}
	return nil
}
