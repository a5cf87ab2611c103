package backup

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"gatehouse/internal/maintenance/backup"
	"gatehouse/tool"
)

// mostText is how large a file may be whose text is shown.
const mostText = 8 << 20

type readIn struct {
	oneIn
	Path string `json:"path,omitempty" doc:"of a file or folder in the backup, such as data/contexts.db; left out, its top" max:"4096"`
}

type readOut struct {
	Backup   string `json:"backup"`
	Path     string `json:"path"`
	Content  string `json:"content" text:"product"`
	Size     int64  `json:"size" doc:"bytes of the file, or of all files below the folder"`
	Modified string `json:"modified,omitempty" doc:"of a file"`
	Entries  int    `json:"entries,omitempty" doc:"of a folder: a line each, with its bytes"`
}

func (b *backupTools) readBackup(ctx context.Context, c *tool.Call, in readIn) (out readOut, err error) {
	if err := b.ready(c); err != nil {
		return out, err
	}
	key, err := b.key(in.keyIn)
	if err != nil {
		return out, err
	}
	path := strings.Trim(in.Path, "/")
	if secretFile(path) {
		return out, &tool.Refusal{
			Code:    tool.CodeDenied,
			Message: path + " holds secrets of the host, which no model is shown",
			Next:    "A person reads it with: gatehouse backup read " + path,
		}
	}
	e, m, err := b.cfg.Backups.Info(ctx, in.Target, in.Backup, key)
	if err != nil {
		return out, refusalOf(err)
	}
	if list := m.Folder(path); path == "" || len(list) > 0 {
		return listing(path, e, list), nil
	}
	err = b.cfg.Backups.ReadFile(
		ctx,
		in.Target,
		e.Name,
		path,
		key,
		func(e backup.Entry, f backup.File, content io.Reader) error {
			out, err = showFile(e, f, content)
			return err
		},
	)
	return out, refusalOf(err)
}

// secretFile reports whether a file opens or holds what secret tools keep from
// models.
func secretFile(path string) bool {
	folder, _, _ := strings.Cut(path, "/")
	return folder == "key" || path == "config/secrets.age" || path == "config/logins.age" ||
		path == "config/secrets.key"
}

// showFile gives the text of a file.
func showFile(e backup.Entry, f backup.File, content io.Reader) (out readOut, err error) {
	other := &tool.Refusal{Next: "A person reads it with: gatehouse backup read " + f.Member() + " --backup " + e.Name}
	if f.Size > mostText {
		other.Code, other.Message = tool.CodeTooLarge, fmt.Sprintf(
			"%s has %d bytes, and %d are shown at most",
			f.Member(),
			f.Size,
			mostText,
		)
		return out, other
	}
	b, err := io.ReadAll(content)
	if err != nil {
		return out, err
	}
	if !utf8.Valid(b) || slices.Contains(b, 0) {
		other.Code, other.Message = tool.CodeUnsupported, fmt.Sprintf("%s, of %d bytes, is no text", f.Member(), f.Size)
		return out, other
	}
	return readOut{
		Backup:   e.Name,
		Path:     f.Member(),
		Content:  string(b),
		Size:     f.Size,
		Modified: f.Modified.Format(time.RFC3339),
	}, nil
}

// listing shows what is in a folder of a backup, a line each: files with their
// size, folders with a slash at the end and the size of all below them.
func listing(path string, e backup.Entry, list []backup.Below) readOut {
	slices.SortFunc(list, func(a, b backup.Below) int { return cmp.Compare(a.Name, b.Name) })
	out := readOut{Backup: e.Name, Path: path, Entries: len(list)}
	var text strings.Builder
	for _, b := range list {
		fmt.Fprintf(&text, "%s\t%d\n", b.Name, b.Size)
		out.Size += b.Size
	}
	out.Content = text.String()
	return out
}
