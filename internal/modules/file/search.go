package file

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"gatehouse/internal/files/language"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/search"
	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

type searchIn struct {
	Pattern    string `json:"pattern,omitempty"`
	Path       string `json:"path,omitempty" default:"." doc:"directory or file" names:"path"`
	Mode       string `json:"mode,omitempty" enum:"content,files,count,names" default:"content"`
	Glob       string `json:"glob,omitempty" doc:"such as *.go,!vendor/**"`
	Type       string `json:"type,omitempty" doc:"languages: go,python"`
	Literal    bool   `json:"literal,omitempty" doc:"pattern is plain text"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	Multiline  bool   `json:"multiline,omitempty"`
	Context    int    `json:"context,omitempty" min:"0" max:"20"`
	Limit      int    `json:"limit,omitempty" default:"100" min:"1" max:"1000"`
	All        bool   `json:"all,omitempty" doc:"also ignored files"`
	Cursor     string `json:"cursor,omitempty"`

	file string // the file's name, if path names a file
	rest bool   // the cursor asks for the hits of each file beyond its first ones
}

type searchOut struct {
	Content    string `json:"content" text:"product"`
	Files      int64  `json:"files"`
	Hits       int64  `json:"hits,omitempty"`
	NextCursor string `json:"next_cursor,omitempty"`
	Note       string `json:"note,omitempty"`

	atLeast bool // the search was stopped, so that the numbers are lower bounds
	mode    string
}

const searchHelp = `Searches the files below a directory, or one file.

- pattern is a regular expression in the syntax of RE2 and Go, matched line by line; with literal, plain text. With
  multiline a match may span lines, and (?s) lets . match a newline.
- mode content shows the lines, "12: " before a hit and "12- " before context, under the path and etag of their file;
  file_edit accepts the etag as if_match. Files in which a definition matches come first, then the others by path.
  The first 20 hits of each file come first; the other hits follow after all files, by cursor.
- mode files lists the files that match, count the number of matching lines in each. names selects files by name
  alone: pattern is then a part of the path, a glob, or a regular expression.
- glob is a list of patterns, ! excludes. One without a slash is matched against the name, ** spans directories,
  {a,b} are alternatives. type is a list of ids of lang_list or extensions.
- Files that .gitignore and .ignore exclude, and .git itself, are skipped unless all is set. Binary files and links
  are always skipped; files in UTF-16 are decoded. Protected files are searched by name only.
- A page has at most 8 kB; give next_cursor as cursor for the next page. A search ends after 25 s with its hits so far.
- Lines over 1 MB are searched in pieces. In files over 32 MB a match does not span lines.`

const (
	firstHits  = 20               // hits of each file that come first; its others come after all files
	restHits   = 200              // hits of one file that are held for a page of the others
	searchPage = 7400             // bytes of text on a page as JSON; with the rest of the message less than 8 kB
	searchTime = 25 * time.Second // shorter than the tool's deadline, because clients time out earlier
)

func (m *files) searchTool() tool.Tool {
	return tool.New(tool.Def{
		Name:  "file_search",
		Title: "Search files",
		Description: "Searches file contents by regexp (RE2), or selects files by name. Returns hits with line " +
			"numbers, definitions first.",
		Help:    searchHelp,
		Effects: tool.Reads,
		Budget:  -1, // it pages itself
	}, m.search)
}

func (m *files) search(ctx context.Context, c *tool.Call, in searchIn) (searchOut, error) {
	q, p, err := in.query(c)
	if err != nil {
		return searchOut{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	res, err := search.Run(ctx, q)
	late := errors.Is(err, context.DeadlineExceeded)
	if err != nil && !late {
		return searchOut{}, p.Refuse(err)
	}
	pg := searchPrinter{in: &in, prefix: in.Path}
	if pg.prefix == "." || q.Tree.Depth == 1 {
		pg.prefix = ""
	}
	if in.file != "" {
		pg.only = in.Path
	}
	out := searchOut{Files: res.Matched, Hits: res.Hits}
	out.Content, out.NextCursor = pg.page(res)
	out.atLeast = late
	out.Note = searchNote(res, late, in.Mode == "names")
	out.mode = in.Mode
	return out, nil
}

// query turns the arguments into a query. p is the place that is searched.
func (in *searchIn) query(c *tool.Call) (q search.Query, p roots.Place, err error) {
	in.setDefaults()
	if p, err = roots.Locate(c.Roots, in.Path); err != nil {
		return q, p, err
	}
	if p, err = p.Followed(true); err != nil {
		return q, p, err
	}
	info, err := p.Stat()
	if err != nil {
		return q, p, err
	}
	q.Tree = walk.Options{Root: p.Tree(), Start: filepath.ToSlash(p.Name), All: in.All}
	if q.Tree.Skip = skipVirtual(p); !info.IsDir() {
		if err := p.MustBeRegular(info); err != nil {
			return q, p, err
		}
		in.file = path.Base(q.Tree.Start)
		q.Tree.Start, q.Tree.Depth, q.Tree.All = path.Dir(q.Tree.Start), 1, true
	}
	q.Context, q.Limit = in.Context, in.Limit
	if q.Mode = searchModes[in.Mode]; q.Mode != search.Names {
		above := p.Name
		if in.file != "" {
			above = filepath.Dir(above)
		}
		dir := p
		dir.Name = above
		q.Deny = func(f *os.File, path string) bool { return dir.Refuses(path) || dir.Judge(f, "", false) != nil }
	}
	if q.After, in.rest, err = searchKey(in.Cursor); err != nil {
		return q, p, err
	}
	switch {
	case in.file != "":
		q.PerFile = in.Limit
	case in.rest:
		q.Skip, q.PerFile = firstHits, min(in.Limit, restHits)
	default:
		q.PerFile, q.Until = firstHits, firstHits
	}
	if c.Peer != nil {
		q.Progress = func(n int64) { c.Peer.Progress(float64(n), 0, "files searched") }
	}
	return q, p, in.compile(&q)
}

var searchModes = map[string]search.Mode{
	"content": search.Content,
	"files":   search.Files,
	"count":   search.Count,
	"names":   search.Names,
}

func (in *searchIn) setDefaults() {
	if in.Path == "" {
		in.Path = "."
	}
	if in.Mode == "" {
		in.Mode = "content"
	}
	if in.Pattern == "" && (in.Glob != "" || in.Type != "") {
		in.Mode = "names" // there is no pattern to search the content for
	}
	if in.Limit == 0 {
		in.Limit = 100
	}
}

// compile sets the conditions of q on files and lines.
func (in *searchIn) compile(q *search.Query) (err error) {
	if q.Globs, err = walk.ParseGlobs(walk.SplitGlobs(in.Glob)); err != nil {
		return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: err.Error()}
	}
	var only []func(path, name string) bool
	if in.file != "" {
		only = append(only, func(_, name string) bool { return name == in.file })
	}
	if in.Type != "" {
		ofType, err := language.Chooser(strings.Split(in.Type, ","))
		if err != nil {
			return &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: err.Error(),
				Next:    "Give ids of lang_list, or use glob.",
			}
		}
		only = append(only, func(_, name string) bool { return ofType(name) })
	}
	if q.Mode == search.Names {
		byName, err := in.nameMatcher()
		if err != nil {
			return err
		}
		only = append(only, byName)
	} else {
		if in.Pattern == "" {
			return &tool.Refusal{
				Code:    tool.CodeInvalidArguments,
				Message: "pattern is missing",
				Next:    "Give the text to search for, or mode names with a glob.",
			}
		}
		how := search.How{Literal: in.Literal, IgnoreCase: in.IgnoreCase, Multiline: in.Multiline}
		if q.Pattern, err = search.Compile(in.Pattern, how); err != nil {
			return &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "pattern: " + err.Error()}
		}
	}
	if len(only) > 0 {
		q.Only = func(path, name string) bool {
			for _, f := range only {
				if !f(path, name) {
					return false
				}
			}
			return true
		}
	}
	return nil
}

// nameMatcher returns a function that selects files by their paths. The pattern
// is a regular expression if it has characters that only those use, a glob if
// it has wildcards, and otherwise a part of the path.
func (in *searchIn) nameMatcher() (func(path, name string) bool, error) {
	fold := func(s string) string { return s }
	if in.IgnoreCase {
		fold = strings.ToLower
	}
	text := fold(in.Pattern)
	if !in.Literal && strings.ContainsAny(text, `\^$|+()`) ||
		strings.Contains(text, ".*") && !strings.HasPrefix(text, ".*") {
		source := in.Pattern
		if in.IgnoreCase {
			source = "(?i)" + source
		}
		re, err := regexp.Compile(source)
		if err != nil {
			return nil, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "pattern: " + err.Error()}
		}
		return func(path, _ string) bool { return re.MatchString(path) }, nil
	}
	if !in.Literal && strings.ContainsAny(text, "*?[{") {
		globs, err := walk.ParseGlobs([]string{text})
		if err != nil {
			return nil, &tool.Refusal{Code: tool.CodeInvalidArguments, Message: "pattern: " + err.Error()}
		}
		return func(path, name string) bool { return globs.Match(fold(path), fold(name)) }, nil
	}
	return func(path, _ string) bool { return strings.Contains(fold(path), text) }, nil
}

// skipVirtual returns a function that skips /proc, /sys and /dev if the root is
// the whole file system: reading a virtual file may block or never end.
func skipVirtual(p roots.Place) func(path string, dir bool) bool {
	if p.Folder() != "/" {
		return nil
	}
	return func(path string, dir bool) bool {
		return dir && (path == "proc" || path == "sys" || path == "dev")
	}
}
