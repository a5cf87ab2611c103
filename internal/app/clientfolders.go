package app

import (
	"strings"

	"gatehouse/internal/files/roots"
	"gatehouse/tool"
)

// inClientFolders gives a call the folders in which its client works, of those
// that its context may touch. A context or a host that names folders limits
// them; a daemon that names none opens any, as gatehouse serve would have done
// in the client's place. done closes what was opened for the call.
func (a *App) inClientFolders(c *tool.Call) (done func(), err error) {
	done = func() {}
	set, ok := c.Roots.(*roots.Set)
	if !ok || len(c.Caller.Folders) == 0 {
		return done, nil
	}
	var part *roots.Set
	switch {
	case a.opts.AnyFolder && set == a.roots:
		var dirs []roots.Dir
		for _, path := range c.Caller.Folders {
			dirs = append(dirs, roots.Dir{Path: path})
		}
		if part, err = roots.Open(dirs, a.rootOptions()); err != nil {
			return nil, &tool.Refusal{Code: "not_found", Message: err.Error(),
				Next: "It is the folder this client was started for; make it again, or start the client elsewhere."}
		}
	case set.Everything() && !c.Caller.Named:
		part = set.StartingAt(c.Caller.Folders[0])
	default:
		part = set.Narrow(c.Caller.Folders)
	}
	switch {
	case part != nil:
		c.Roots = part
		return func() { part.Close() }, nil
	case set != a.roots && !c.Caller.Named:
		return done, nil // the context says where its callers work; the client was only started somewhere
	}
	return nil, &tool.Refusal{
		Code:    "outside_root",
		Message: "this client works in " + strings.Join(c.Caller.Folders, ", ") + ", which is outside the folders this server may touch",
		Next:    "Start the client in one of the server's folders, or name one with -d.",
	}
}
