package dir

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"gatehouse/internal/files/walk"
	"gatehouse/tool"
)

// item is a name in its place of an order.
type item struct {
	key  int64 // smaller comes first: the size or the time, negated; 0 by name
	name string
}

func (a item) compare(b item) int {
	return cmp.Or(cmp.Compare(a.key, b.key), strings.Compare(a.name, b.name))
}

// chooser finds the first entries of one directory in an order. It holds no
// more of them than are wanted and a few, however many there are.
type chooser struct {
	root   *os.Root
	filter *walk.Filter
	globs  walk.Globs
	sort   string // "" or name, size, mtime

	total, ignored int
}

// first returns the n first entries after one, sorted.
func (ch *chooser) first(ctx context.Context, after item, n int) ([]item, error) {
	d, err := ch.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var least lastFirst
	for {
		if err := context.Cause(ctx); err != nil {
			return nil, err
		}
		names, err := d.Readdirnames(1024)
		for _, name := range names {
			it := item{name: name}
			if !ch.takes(&it) || it.compare(after) <= 0 && after != (item{}) {
				continue
			}
			switch {
			case len(least) < n:
				heap.Push(&least, it)
			case it.compare(least[0]) < 0:
				least[0] = it
				heap.Fix(&least, 0)
			}
		}
		if err == io.EOF {
			slices.SortFunc(least, item.compare)
			return least, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// takes decides about an entry, counts it and finds its place. It looks at the
// entry itself only if that is needed.
func (ch *chooser) takes(it *item) bool {
	if ch.filter.Ignores(it.name, func() bool { return isDir(ch.root, it.name) }) {
		ch.ignored++
		return false
	}
	if !ch.globs.Match(it.name, it.name) {
		return false
	}
	ch.total++
	if ch.sort == "size" || ch.sort == "mtime" {
		info, err := ch.root.Lstat(it.name)
		switch {
		case err != nil:
		case ch.sort == "mtime":
			it.key = -info.ModTime().UnixNano()
		case info.Mode().IsRegular():
			it.key = -info.Size()
		}
	}
	return true
}

func isDir(root *os.Root, name string) bool {
	info, err := root.Lstat(name)
	return err == nil && info.IsDir()
}

// lastFirst is a heap whose top is the first to go.
type lastFirst []item

func (h lastFirst) Len() int           { return len(h) }
func (h lastFirst) Less(i, j int) bool { return h[i].compare(h[j]) > 0 }
func (h lastFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lastFirst) Push(x any)        { *h = append(*h, x.(item)) }
func (h *lastFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// A cursor holds the last entry shown, whose name may be any bytes, and where
// the order is not by name, its place. A checksum of it and of the order tells it
// from any other text, which would begin somewhere without a word.
func encodeCursor(it item, sort string) string {
	text := it.name
	if sort == "size" || sort == "mtime" {
		text = strconv.FormatInt(it.key, 36) + "/" + text
	}
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint32([]byte(text), checksum(text, sort)))
}

func checksum(text, sort string) uint32 {
	if sort != "size" && sort != "mtime" {
		sort = "" // all others are by name
	}
	return crc32.ChecksumIEEE([]byte(sort + "/" + text))
}

func decodeCursor(cursor, sort string) (it item, err error) {
	if cursor == "" {
		return it, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if n := len(b) - 4; err == nil && n > 0 {
		if it.name = string(b[:n]); binary.BigEndian.Uint32(b[n:]) != checksum(it.name, sort) {
			err = errors.New("its checksum is another")
		}
	} else if err == nil {
		err = errors.New("it is too short")
	}
	if err == nil && (sort == "size" || sort == "mtime") {
		key, name, _ := strings.Cut(it.name, "/")
		it.key, err = strconv.ParseInt(key, 36, 64)
		if it.name = name; name == "" {
			err = errors.New("it holds no name")
		}
	}
	if err != nil || len(it.name) > 4096 {
		return item{}, &tool.Refusal{Code: "invalid_arguments", Message: "cursor is not one of dir_list's", Next: "Give next_cursor of the page before with the same arguments, or none for the first page."}
	}
	return it, nil
}
