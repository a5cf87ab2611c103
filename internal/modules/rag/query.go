package rag

import (
	"context"
	"encoding/xml"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"gatehouse/internal/files/index"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

const queryHelp = `Finds passages in a collection of ingested files that answer a question.

- Each passage begins with its citation, path:12-48, which file_read understands as path with lines 12 to 48, and the
  headings or symbols around it. Passages that follow each other are one; near duplicates are left out.
- topK is the number of passages; max_tokens limits their length together (a token is taken as 4 bytes). The last one
  is cut if necessary.
- glob selects files: docs/**,*.go. mode is auto, lexical (words alone) or vector (meaning alone).
- weak evidence means that the passages have few of the question's words: they may not answer it.
- stale files have changed since they were ingested, or are gone: call rag_ingest again.
- Files that you may not read yourself are left out.`

// bytesPerToken is a common estimate for English text and code.
const bytesPerToken = 4

type queryIn struct {
	Question   string `json:"question" min:"1" max:"4000"`
	Collection string `json:"collection,omitempty" default:"documents" min:"1" max:"100"`
	TopK       int    `json:"topK,omitempty" default:"5" min:"1" max:"50"`
	MaxTokens  int    `json:"max_tokens,omitempty" default:"2500" min:"50" max:"20000" doc:"of all passages"`
	Mode       string `json:"mode,omitempty" enum:"auto,lexical,vector" default:"auto"`
	Glob       string `json:"glob,omitempty" doc:"only files such as docs/**,*.go"`
}

type queryOut struct {
	Text       string      `json:"text" text:"product"`
	Results    []resultOut `json:"results" text:"facts"`
	Query      string      `json:"query" text:"facts"`
	Collection string      `json:"collection" text:"facts"`
	Context    string      `json:"context" text:"facts" doc:"the passages as XML"`
	Weak       bool        `json:"weak" text:"facts" doc:"the passages have few of the question's words"`
	Coverage   float64     `json:"coverage" text:"facts" doc:"share of the question's words in the best passages, 0 to 1"`
	Unranked   string      `json:"unranked,omitempty" text:"facts" doc:"why the reranker could not be asked"`
	Hidden     int         `json:"hidden,omitempty" text:"facts" doc:"files left out because the caller may not read them"`

	stale int
}

type resultOut struct {
	Content  string   `json:"content"`
	Source   string   `json:"source"`
	Section  string   `json:"section,omitempty"`
	Category string   `json:"category,omitempty"`
	Chunk    int      `json:"chunkIndex"`
	Score    float64  `json:"score"`
	Citation string   `json:"citation"`
	Line     int      `json:"line"`
	Last     int      `json:"last"`
	Page     int      `json:"page,omitempty"`
	Words    float64  `json:"words" doc:"BM25"`
	Vectors  float64  `json:"vectors" doc:"cosine"`
	Rerank   *float64 `json:"rerank,omitempty" doc:"score of the reranker"`
	Stale    string   `json:"stale,omitempty" doc:"changed or gone since it was ingested"`
}

// Facts implements tool.Facter.
func (o queryOut) Facts() string {
	var weak, stale, hidden string
	if o.Weak {
		weak = "weak evidence: the passages have few of the question's words"
	}
	if o.stale > 0 {
		stale = fmt.Sprintf("stale passages: %d; call rag_ingest again", o.stale)
	}
	unranked := ""
	if o.Unranked != "" {
		unranked = "the passages are not reranked: " + o.Unranked
	}
	if o.Hidden > 0 {
		hidden = fmt.Sprintf("files you may not read were left out: %d", o.Hidden)
	}
	return tool.Facts(fmt.Sprintf("passages=%d", len(o.Results)), weak, stale, hidden, unranked)
}

func (k *knowledge) query(ctx context.Context, c *tool.Call, in queryIn) (queryOut, error) {
	globs, err := walk.ParseGlobs(walk.SplitGlobs(in.Glob))
	if err != nil {
		return queryOut{}, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	col, err := k.store.Find(ctx, c.Caller.Owner, c.Caller.Context, in.Collection)
	if err != nil {
		return queryOut{}, refuse(in.Collection, err)
	}
	v := newViewer(c, col)
	q := index.Query{Text: in.Question, Most: in.TopK, Mode: index.Mode(in.Mode), Allow: v.allow}
	if !globs.Any() {
		q.Only = func(p string) bool {
			shown := filepath.ToSlash(v.shown(p))
			return globs.Match(strings.TrimPrefix(shown, "/"), path.Base(shown))
		}
	}
	a, err := k.store.Query(ctx, col, q)
	if err != nil {
		return queryOut{}, refuse(in.Collection, err)
	}
	return newQueryOut(in, a, v), nil
}

// viewer is what the caller of a query may see of the files.
type viewer struct {
	roots tool.Roots
	first string // the path of the first root, with a separator at its end
	stale map[string]string
	own   bool // the collection is the caller's
}

func newViewer(c *tool.Call, of index.Collection) *viewer {
	v := &viewer{roots: c.Roots, stale: map[string]string{}, own: of.Owner == c.Caller.Owner}
	if list := c.Roots.List(); len(list) > 0 {
		v.first = strings.TrimSuffix(list[0].Path, string(filepath.Separator)) + string(filepath.Separator)
	}
	return v
}

// allow reports whether the caller may read a file now, and notes whether it changed.
func (v *viewer) allow(f index.FileInfo) bool {
	if strings.HasPrefix(f.Path, index.ChatPrefix) {
		return v.own
	}
	p, err := roots.Locate(v.roots, f.Path)
	if err != nil || p.MayRead() != nil {
		return false
	}
	info, err := p.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		v.stale[f.Path] = "gone"
	case info.Size() != f.Size || !info.ModTime().Equal(f.Modified):
		v.stale[f.Path] = "changed"
	}
	return true
}

// shown returns a path as the caller writes it.
func (v *viewer) shown(path string) string {
	if v.first != "" {
		if rel, ok := strings.CutPrefix(path, v.first); ok {
			return rel
		}
	}
	return path
}

func newQueryOut(in queryIn, a index.Answer, v *viewer) queryOut {
	out := queryOut{
		Results: []resultOut{}, Query: in.Question, Collection: in.Collection, Weak: a.Weak,
		Coverage: math.Round(a.Coverage*100) / 100, Hidden: a.Hidden,
	}
	if a.Unranked != nil {
		out.Unranked = a.Unranked.Error()
	}
	left := in.MaxTokens * bytesPerToken
	var text, context strings.Builder
	context.WriteString("<retrieved_context>\n")
	for _, h := range a.Hits {
		if left <= 0 {
			break
		}
		r := resultOut{
			Source: v.shown(h.File.Path), Section: h.Heading, Category: categoryOf(h.File.Path), Chunk: h.Chunk,
			Score: math.Round(h.Score*1000) / 1000, Line: h.Line, Page: h.Page,
			Words: math.Round(h.Words*100) / 100, Vectors: math.Round(h.Vectors*1000) / 1000, Stale: v.stale[h.File.Path],
			Rerank: h.Rerank,
		}
		r.Content, r.Last = cutLines(h.Text, h.Line, h.Last, left)
		left -= len(r.Content)
		r.Citation = fmt.Sprintf("%s:%d-%d", r.Source, r.Line, r.Last)
		if r.Stale != "" {
			out.stale++
		}
		writeText(&text, r)
		writeXML(&context, r)
		out.Results = append(out.Results, r)
	}
	context.WriteString("</retrieved_context>")
	out.Text, out.Context = text.String(), context.String()
	if len(out.Results) == 0 {
		out.Text = "Nothing was found.\n"
	}
	return out
}

// cutLines returns as much of a passage as fits, in whole lines if possible, and its last line.
func cutLines(text string, first, last, most int) (string, int) {
	if len(text) <= most {
		return text, last
	}
	text = text[:most]
	if i := strings.LastIndexByte(text, '\n'); i > most/2 {
		text = text[:i]
	}
	for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) {
		text = text[:len(text)-1]
	}
	return text, min(last, first+strings.Count(text, "\n"))
}

func writeText(b *strings.Builder, r resultOut) {
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	b.WriteString(r.Citation)
	if r.Section != "" {
		b.WriteString(" (" + r.Section + ")")
	}
	if r.Page > 0 {
		fmt.Fprintf(b, " [page %d]", r.Page)
	}
	if r.Stale != "" {
		b.WriteString(" [stale: " + r.Stale + "]")
	}
	b.WriteString("\n" + r.Content + "\n")
}

func writeXML(b *strings.Builder, r resultOut) {
	fmt.Fprintf(b, `<document source="%s" section="%s" category="%s">`,
		escapeXML(r.Citation), escapeXML(r.Section), escapeXML(r.Category))
	b.WriteString("\n" + escapeXML(r.Content) + "\n</document>\n")
}

func escapeXML(s string) string {
	var b strings.Builder
	if err := xml.EscapeText(&b, []byte(s)); err != nil {
		return ""
	}
	return strings.NewReplacer("&#xA;", "\n", "&#x9;", "\t").Replace(b.String())
}

// categories are found in the words of a path, in this order.
var categories = []struct{ category, words string }{
	{"ui-component", "flux component components"},
	{"brand", "brand mascot"},
	{"product-brief", "brief"},
	{"help-doc", "help draft"},
	{"task", "task tasks plan plans"},
	{"architecture", "architecture migration"},
}

// categoryOf names what kind of document a path is by its words.
func categoryOf(path string) string {
	have := map[string]bool{}
	for w := range strings.FieldsFuncSeq(strings.ToLower(path), func(r rune) bool {
		return r < '0' || r > '9' && r < 'a' || r > 'z'
	}) {
		have[w] = true
	}
	for _, c := range categories {
		for w := range strings.FieldsSeq(c.words) {
			if have[w] {
				return c.category
			}
		}
	}
	return "documentation"
}
