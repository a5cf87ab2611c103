package extract

import (
	"encoding/xml"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mostGap is the number of empty cells that are written between two others.
const mostGap = 20

// fromSheets writes each sheet of a workbook as a heading and a line for each row, and then its comments and links.
func fromSheets(w *writer, f *guarded) error {
	a, err := openArchive(w, f)
	if err != nil {
		return err
	}
	main := a.mainPart("xl/workbook.xml")
	sheets, err := a.children(main, "sheet")
	if err != nil {
		return err
	}
	b := &workbook{archive: a}
	dir := main[:strings.LastIndexByte(main, '/')+1]
	if b.texts, err = a.sharedStrings(dir + "sharedStrings.xml"); err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	if err := b.dates(main, dir+"styles.xml"); err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	for _, s := range sheets {
		w.paragraph()
		if err := w.raw("# " + s.title); err != nil {
			return err
		}
		w.paragraph()
		if err := b.sheet(s.part); err != nil {
			return err
		}
	}
	return nil
}

// workbook is what the cells of a workbook share.
type workbook struct {
	*archive
	texts  []string // that cells refer to by their numbers
	styles []bool   // by its number, whether a style shows numbers as dates
	epoch  time.Time
}

// dates reads which styles show numbers as dates.
func (b *workbook) dates(main, part string) error {
	b.epoch = time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC)
	err := b.elements(main, func(t xml.StartElement) {
		if on := attribute(t, "", "date1904"); t.Name.Local == "workbookPr" && (on == "1" || on == "true") {
			b.epoch = time.Date(1904, 1, 1, 0, 0, 0, 0, time.UTC)
		}
	})
	if err != nil {
		return err
	}
	custom := map[int]bool{}
	inCells := false
	return b.tokens(part, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			n, err := strconv.Atoi(attribute(t, "", "numFmtId"))
			switch t.Name.Local {
			case "cellXfs":
				inCells = true
			case "numFmt":
				if err == nil && len(custom) < mostRelations {
					custom[n] = isDateFormat(attribute(t, "", "formatCode"))
				}
			case "xf":
				if inCells && len(b.styles) < mostRelations {
					date, known := custom[n]
					if !known {
						date = n >= 14 && n <= 22 || n >= 27 && n <= 36 || n >= 45 && n <= 47 || n >= 50 && n <= 58
					}
					b.styles = append(b.styles, err == nil && date)
				}
			}
		case xml.EndElement:
			inCells = inCells && t.Name.Local != "cellXfs"
		}
		return nil
	})
}

// isDateFormat reports whether a format such as yyyy\-mm\-dd has a part of a date or of a time outside of quoted text,
// of escaped signs, and of brackets other than those of hours that pass.
func isDateFormat(format string) bool {
	first, _, _ := strings.Cut(format, ";")
	quoted, bracket := false, false
	for i := 0; i < len(first); i++ {
		switch c := first[i] | 0x20; {
		case first[i] == '"':
			quoted = !quoted
		case quoted:
		case first[i] == '\\' || first[i] == '_' || first[i] == '*':
			i++
		case first[i] == '[':
			bracket = i+1 < len(first) && !strings.ContainsRune("hHmMsS", rune(first[i+1]))
		case first[i] == ']':
			bracket = false
		case bracket:
		case c == 'd' || c == 'm' || c == 'y' || c == 'h' || c == 's':
			return !strings.EqualFold(first, "general")
		}
	}
	return false
}

// date returns the date or the time that a number stands for.
func (b *workbook) date(value string) string {
	days, err := strconv.ParseFloat(value, 64)
	if err != nil || !(days >= 0 && days <= 2_958_466) { // the year 9999; not NaN
		return value
	}
	whole, part := math.Modf(days)
	seconds := time.Duration(math.Round(part*86400)) * time.Second
	at := b.epoch.AddDate(0, 0, int(whole)).Add(seconds)
	switch {
	case whole == 0:
		return at.Format(time.TimeOnly)
	case seconds == 0:
		return at.Format(time.DateOnly)
	}
	return at.Format(time.DateTime)
}

// Shared strings are held until the last sheet, so that they have limits of their own.
const (
	mostShared = 24 << 20 // bytes
	sharedCost = 48       // bytes of a string besides its text: the string, its place in memory, and the growth of the list
)

// sharedStrings returns the texts that cells refer to by their numbers.
func (a *archive) sharedStrings(part string) (texts []string, err error) {
	var b strings.Builder
	inText, phonetic := false, false
	size := 0
	err = a.tokens(part, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "si":
				b.Reset()
			case "rPh":
				phonetic = true
			case "t":
				inText = !phonetic
			}
		case xml.EndElement:
			switch t.Name.Local {
			case "si":
				if size += sharedCost; size > mostShared {
					return errBomb
				}
				texts = append(texts, b.String())
			case "rPh":
				phonetic = false
			case "t":
				inText = false
			}
		case xml.CharData:
			if inText {
				if size += len(t); size > mostShared {
					return errBomb
				}
				b.Write(t)
			}
		}
		return nil
	})
	return texts, err
}

// sheet writes the rows of a sheet, its links and its comments.
func (b *workbook) sheet(part string) error {
	links, err := b.relations(part)
	if err != nil && !errors.Is(err, errNoPart) {
		return err
	}
	r := &rowWriter{workbook: b}
	var addresses []string // of links, below the rows
	err = b.tokens(part, func(t xml.Token) error {
		if t, ok := t.(xml.StartElement); ok && t.Name.Local == "hyperlink" && len(addresses) < mostLinks {
			to := links[attribute(t, "relationships", "id")].external
			if strings.Contains(to, "://") && len(to) <= 300 {
				addresses = append(addresses, attribute(t, "", "ref")+": "+to)
			}
			return nil
		}
		return r.token(t)
	})
	if err != nil {
		return err
	}
	b.w.paragraph()
	for _, line := range addresses {
		b.w.newLine()
		if err := b.w.raw(line); err != nil {
			return err
		}
	}
	var comments []string
	for _, r := range links {
		if r.kind == "comments" {
			comments = append(comments, r.part)
		}
	}
	slices.Sort(comments)
	for _, part := range comments {
		if err := b.comments(part); err != nil && !errors.Is(err, errNoPart) {
			return err
		}
	}
	return nil
}

// mostLinks is the number of links of a sheet that are written.
const mostLinks = 10_000

// comments writes the comments on the cells of a sheet.
func (b *workbook) comments(part string) error {
	inText := false
	return b.tokens(part, func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			switch t.Name.Local {
			case "comment":
				b.w.newLine()
				return b.w.mark("[" + attribute(t, "", "ref") + "]: ")
			case "t":
				inText = true
			}
		case xml.EndElement:
			inText = inText && t.Name.Local != "t"
		case xml.CharData:
			if inText {
				return b.w.writeWords(string(t))
			}
		}
		return nil
	})
}

// rowWriter writes the cells of a sheet.
type rowWriter struct {
	*workbook
	kind           string
	date           bool
	value, formula strings.Builder
	column, last   int
	inValue, inF   bool
}

func (r *rowWriter) token(t xml.Token) error {
	switch t := t.(type) {
	case xml.StartElement:
		switch t.Name.Local {
		case "row":
			r.w.newLine()
			r.column, r.last = 0, 0
		case "c":
			r.kind = attribute(t, "", "t")
			n, err := strconv.Atoi(attribute(t, "", "s"))
			r.date = err == nil && n >= 0 && n < len(r.styles) && r.styles[n]
			r.value.Reset()
			r.formula.Reset()
			if r.column++; attribute(t, "", "r") != "" {
				r.column = columnOf(attribute(t, "", "r"))
			}
		case "v", "t":
			r.inValue = true
		case "f":
			r.inF = true
		}
	case xml.CharData:
		if r.inValue {
			r.value.Write(t)
		} else if r.inF {
			r.formula.Write(t)
		}
	case xml.EndElement:
		switch t.Name.Local {
		case "v", "t":
			r.inValue = false
		case "f":
			r.inF = false
		case "c":
			return r.endCell()
		}
	}
	return nil
}

func (r *rowWriter) endCell() error {
	text := cellText(r.kind, r.value.String(), r.texts)
	switch {
	case text == "" && r.formula.Len() > 0: // it was never computed
		text = "=" + strings.Join(strings.Fields(r.formula.String()), " ")
	case r.date && (r.kind == "" || r.kind == "n"):
		text = r.workbook.date(text)
	}
	if text == "" {
		return nil
	}
	if r.last > 0 {
		text = strings.Repeat(" |", min(max(r.column-r.last, 1), mostGap)) + " " + text
	}
	r.last = r.column
	return r.w.raw(text)
}

// columnOf returns the number of the column of a cell such as B7, from 1.
func columnOf(cell string) (n int) {
	for _, r := range strings.ToUpper(cell) {
		if r < 'A' || r > 'Z' || n > 1<<20 {
			break
		}
		n = n*26 + int(r-'A') + 1
	}
	return n
}

func cellText(kind, value string, texts []string) string {
	value = strings.TrimSpace(value)
	switch kind {
	case "s":
		i, err := strconv.Atoi(value)
		if err != nil || i < 0 || i >= len(texts) {
			return ""
		}
		return strings.Join(strings.Fields(texts[i]), " ")
	case "b":
		return map[string]string{"0": "FALSE", "1": "TRUE"}[value]
	}
	return strings.Join(strings.Fields(value), " ")
}
