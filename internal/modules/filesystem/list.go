package filesystem

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"gatehouse/internal/files/merged"
	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// maxEntries is the number of directory entries that one call reads.
const maxEntries = 200_000

// openDir opens a directory as a root of its own, which the caller closes.
func openDir(c *tool.Call, path string) (roots.Place, merged.Folder, error) {
	p, err := findPlace(c, path)
	if err != nil {
		return p, nil, err
	}
	root, err := p.Dir()
	if err != nil {
		return p, nil, nodeError(err, "scandir", path)
	}
	return p, root, nil
}

// readEntries reads a directory, sorted by name.
func readEntries(p roots.Place, root merged.Folder, path string) ([]fs.DirEntry, error) {
	d, err := merged.List(root)
	if err != nil {
		return nil, nodeError(p.Refuse(err), "scandir", path)
	}
	defer d.Close()
	list, err := d.ReadDir(maxEntries + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nodeError(p.Refuse(err), "scandir", path)
	}
	if len(list) > maxEntries {
		return nil, errTooMany(path)
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

func errTooMany(path string) error {
	return refusef("Too many entries: more than %d below %s; use a subdirectory", maxEntries, path)
}

func typeMark(dir bool) string {
	if dir {
		return "[DIR] "
	}
	return "[FILE] "
}

func listDirectory(_ context.Context, c *tool.Call, in pathIn) (tool.Result, error) {
	p, root, err := openDir(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	defer root.Close()
	list, err := readEntries(p, root, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	var rows []string
	for _, e := range list {
		rows = append(rows, typeMark(e.IsDir())+toValidUTF8([]byte(e.Name())))
	}
	return textResult(strings.Join(rows, "\n"))
}

type sizesIn struct {
	Path   string `json:"path" names:"path"`
	SortBy string `json:"sortBy"`
}

type sized struct {
	name string
	dir  bool
	size int64
}

func listSizes(_ context.Context, c *tool.Call, in sizesIn) (tool.Result, error) {
	p, root, err := openDir(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	defer root.Close()
	list, err := readEntries(p, root, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	var all []sized
	var files, dirs int
	var total int64
	for _, e := range list {
		one := sized{toValidUTF8([]byte(e.Name())), e.IsDir(), sizeOf(p, e)}
		if one.dir {
			dirs++
		} else {
			files, total = files+1, total+one.size
		}
		all = append(all, one)
	}
	slices.SortStableFunc(all, func(a, b sized) int {
		if in.SortBy == "size" {
			return cmp.Compare(b.size, a.size)
		}
		return collate(a.name, b.name)
	})
	var rows []string
	for _, e := range all {
		size := ""
		if !e.dir {
			size = fmt.Sprintf("%10s", formatSize(e.size))
		}
		rows = append(rows, typeMark(e.dir)+pad(e.name, 30)+" "+size)
	}
	rows = append(
		rows, "", fmt.Sprintf("Total: %d files, %d directories", files, dirs), "Combined size: "+formatSize(total),
	)
	return textResult(strings.Join(rows, "\n"))
}

// sizeOf returns the size of an entry, or of the target of a link inside the
// folders. It returns 0 if there is no such target.
func sizeOf(p roots.Place, e fs.DirEntry) int64 {
	p.Name = filepath.Join(p.Name, e.Name())
	info, err := p.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// pad fills a name with blanks up to a width in UTF-16 units.
func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(width-len(utf16.Encode([]rune(s))), 0))
}

// collate approximates the order of a locale: punctuation, then digits, then
// letters without regard to case. Lower case comes first if names differ in
// nothing else.
func collate(a, b string) int {
	x, y := []rune(a), []rune(b)
	for i := range min(len(x), len(y)) {
		p, q := unicode.ToLower(x[i]), unicode.ToLower(y[i])
		if p != q {
			return cmp.Or(cmp.Compare(class(p), class(q)), cmp.Compare(p, q))
		}
	}
	if len(x) != len(y) {
		return cmp.Compare(len(x), len(y))
	}
	return -strings.Compare(a, b)
}

func class(r rune) int {
	switch {
	case unicode.IsLetter(r):
		return 2
	case unicode.IsDigit(r):
		return 1
	}
	return 0
}

// formatSize formats a size as the original does.
func formatSize(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", max(n, 0))
	}
	units := []string{"KB", "MB", "GB", "TB"}
	i := min(int(math.Log(float64(n))/math.Log(1024)), len(units))
	return fmt.Sprintf("%.2f %s", float64(n)/math.Pow(1024, float64(i)), units[i-1])
}

func fileInfo(_ context.Context, c *tool.Call, in pathIn) (tool.Result, error) {
	p, err := findPlace(c, in.Path)
	if err != nil {
		return tool.Result{}, err
	}
	i, err := p.Stat()
	if err != nil {
		return tool.Result{}, nodeError(err, "stat", in.Path)
	}
	made, read := times(i)
	return textResult(fmt.Sprintf("size: %d\ncreated: %s\nmodified: %s\naccessed: %s\nisDirectory: %t\nisFile: "+
		"%t\npermissions: %03o",
		i.Size(), date(made), date(i.ModTime()), date(read), i.IsDir(), i.Mode().IsRegular(), i.Mode().Perm()))
}

// date formats a time as JavaScript does.
func date(t time.Time) string {
	zone, offset := t.Zone()
	if offset == 0 && (zone == "UTC" || zone == "") {
		zone = "Coordinated Universal Time"
	}
	return t.Format("Mon Jan 02 2006 15:04:05 GMT-0700") + " (" + zone + ")"
}

// times returns when a file was created and last read. It finds the fields by
// name, because they differ between systems. Without a birth time, created is
// the earliest of the other times.
func times(info fs.FileInfo) (made, read time.Time) {
	made, read = info.ModTime(), info.ModTime()
	v := reflect.Indirect(reflect.ValueOf(info.Sys()))
	if v.Kind() != reflect.Struct {
		return made, read
	}
	at := func(names ...string) (time.Time, bool) {
		for _, n := range names {
			f := v.FieldByName(n)
			if f.IsValid() && f.Kind() == reflect.Struct && f.NumField() >= 2 && f.Field(0).CanInt() &&
				f.Field(1).CanInt() {
				return time.Unix(f.Field(0).Int(), f.Field(1).Int()), true
			}
		}
		return time.Time{}, false
	}
	if t, ok := at("Atim", "Atimespec"); ok {
		read = t
	}
	if t, ok := at("Birthtimespec", "Btim"); ok {
		return t, read
	}
	if t, ok := at("Ctim", "Ctimespec"); ok && t.Before(made) {
		made = t
	}
	return made, read
}

func listAllowed(_ context.Context, c *tool.Call, _ struct{}) (tool.Result, error) {
	rows := []string{"Allowed directories:"}
	for _, r := range c.Roots.List() {
		rows = append(rows, r.Path)
	}
	return textResult(strings.Join(rows, "\n"))
}

// pretty formats v as JSON, indented by two blanks.
func pretty(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}
