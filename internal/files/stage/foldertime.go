package stage

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"
)

// folderTime is the time of a folder that contains names of a plan and stays. Each name that is put in its place changes
// that time, though a program that wrote the file in the folder would not have changed it.
type folderTime struct {
	Layer int    `json:"layer"`
	Name  string `json:"name"`
	MTime int64  `json:"mtime"`
	Names int    `json:"names"`          // in the folder
	Keep  bool   `json:"keep,omitempty"` // the folder gets the time back if it has as many names afterwards
}

// noteFolders adds the folders of a plan that stay, with their times. A folder keeps its time unless names come to it or
// leave it.
func (t *Task) noteFolders(p *plan) error {
	in := map[place]bool{} // whether names come or leave
	passing := map[place]bool{}
	for _, o := range p.Ops {
		at := place{o.Layer, path.Dir(o.Name)}
		if o.Name != "." {
			in[at] = in[at] || (o.From.Type == None) != (o.To.Type == None)
		}
		if o.From.Type != Folder || o.To.Type != Folder {
			passing[place{o.Layer, o.Name}] = true
		}
	}
	for i := range p.Ops { // of which the mode changes
		o := &p.Ops[i]
		if o.From.Type == Folder && o.To.Type == Folder && !in[place{o.Layer, o.Name}] {
			o.To.MTime = o.From.MTime
		}
	}
	for i := range t.Layers {
		root, err := os.OpenRoot(t.Layers[i].Lower)
		if err != nil {
			return err
		}
		for at, changes := range in {
			if at.layer != i || passing[at] {
				continue
			}
			if one, err := timeOf(root, at); err == nil {
				one.Keep = !changes
				p.Folders = append(p.Folders, one)
			} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNoFolder) {
				root.Close()
				return err
			}
		}
		root.Close()
	}
	slices.SortFunc(p.Folders, func(a, b folderTime) int {
		return cmp.Or(a.Layer-b.Layer, cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// timeOf returns the time of a folder, and how many names it has.
func timeOf(root *os.Root, at place) (folderTime, error) {
	one := folderTime{Layer: at.layer, Name: at.name}
	entries, err := list(root, at.name)
	if err != nil {
		return one, err
	}
	for _, e := range entries {
		if !isTemp(e.Name()) {
			one.Names++
		}
	}
	info, err := root.Lstat(at.name)
	if err == nil {
		one.MTime = info.ModTime().UnixNano()
	}
	return one, err
}

// keepTimes gives folders their times back, and returns what they have then. A folder that another program changed
// meanwhile has another number of names.
func (f *performer) keepTimes() (after []folderTime) {
	for _, want := range f.plan.Folders {
		root := f.roots[want.Layer]
		now, err := timeOf(root, place{want.Layer, want.Name})
		if err != nil {
			continue // it was removed meanwhile
		}
		if want.Keep && now.Names == want.Names && now.MTime != want.MTime {
			at := time.Unix(0, want.MTime)
			if root.Chtimes(want.Name, at, at) == nil {
				now.MTime = want.MTime
			}
		}
		after = append(after, now)
	}
	return after
}

// foldersBefore returns the folders of the undoing of a plan: those that nothing has changed since get the time that they
// had before the plan.
func (t *Task) foldersBefore(p, back *plan, after []folderTime) ([]folderTime, error) {
	if err := t.noteFolders(back); err != nil {
		return nil, err
	}
	find := func(all []folderTime, one folderTime) (folderTime, bool) {
		i := slices.IndexFunc(all, func(o folderTime) bool { return o.Layer == one.Layer && o.Name == one.Name })
		if i < 0 {
			return folderTime{}, false
		}
		return all[i], true
	}
	for i, now := range back.Folders {
		then, ok := find(after, now)
		was, had := find(p.Folders, now)
		if ok && had && then.MTime == now.MTime {
			back.Folders[i].MTime, back.Folders[i].Names, back.Folders[i].Keep = was.MTime, was.Names, true
		}
	}
	return back.Folders, nil
}
