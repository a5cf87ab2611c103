package app

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/config"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/exec/overlay"
	"gatehouse/internal/exec/shield"
	"gatehouse/internal/files/roots"
	"gatehouse/internal/files/stage"
	"gatehouse/internal/mcp/session"
	"gatehouse/tool"
)

// StageFolder returns the folder of the tasks of the hosts of one user; "" if they store nothing.
func StageFolder(f config.Folders) string {
	if f.Data == "" {
		return ""
	}
	return filepath.Join(f.Data, "stage")
}

// openStage opens the tasks. A private host has none.
func (a *App) openStage(context.Context) error {
	dir := StageFolder(a.cfg.Folders)
	if a.opts.Private || dir == "" || a.readOnly {
		a.cannotStage = func(bool) string { return "this host stores nothing, so it stages nothing" }
		return nil
	}
	s := a.cfg.Stage
	scratch := s.Scratch
	if scratch == nil {
		scratch = caches()
	}
	if err := stage.Unpack(dir, a.log); err != nil {
		a.log.Error("staged tasks of a backup cannot be unpacked", "err", err)
	}
	noOverlay := sync.OnceValue(func() string {
		if s.Layer == config.LayerCopies {
			return "stage.layer is copies, which programs do not see"
		}
		err := overlay.Probe(dir, s.Network)
		if err == nil {
			return ""
		}
		a.log.Warn("calls of file tools alone can be staged", "err", err)
		return "this machine has no view of folders for programs (" + err.Error() + ")"
	})
	a.cannotStage = func(programs bool) string {
		if why := noOverlay(); programs && why != "" {
			return why + ", so only file tools are staged"
		}
		return ""
	}
	a.stage = stage.New(stage.Options{
		Copies: func() bool { return noOverlay() != "" },
		Dir:    dir, Covers: shield.Closed, Lives: a.sessionLives, Log: a.log, Expire: s.Expire, Network: s.Network,
		Scratch: scratch, Sockets: s.Sockets, Bytes: s.Bytes, Most: s.Tasks,
		Ending: func(task string, all bool) {
			if a.manager != nil {
				a.manager.EndTask(task, all)
			}
		},
		Expires: func(t stage.Task) {
			a.publish("task.expires", struct {
				Principal string    `json:"principal"`
				Context   string    `json:"context"`
				Task      string    `json:"task"`
				At        time.Time `json:"at"`
			}{t.Principal, t.Context, t.ID, t.Expires})
			a.tellPeople(ReviewPage + t.ID)
		},
	})
	a.addPart("staged tasks", a.stage.Run)
	return nil
}

// unattended returns of which callers that no person is beside calls are staged in a context.
func (a *App) unattended() func(context string) (known, all bool) {
	of := a.cfg.Stage.Unattended
	if of == config.UnattendedOff || a.stage == nil {
		return nil
	}
	return func(context string) (known, all bool) {
		here := context != contextstore.Admin
		return here, here && of == config.UnattendedAll
	}
}

// gain are programs that run others with more rights, which they do not get in a view.
var gain = []string{"sudo", "doas", "su", "pkexec", "run0"}

// reach are programs that do nothing without a network, with the first arguments that need one; nil means all.
var reach = map[string][]string{
	"curl": nil, "wget": nil, "ssh": nil, "scp": nil, "sftp": nil,
	"git": {"push", "pull", "fetch", "clone", "ls-remote"},
	"npm": {"publish"}, "cargo": {"publish"}, "twine": {"upload"}, "gh": nil,
	"docker": nil, "podman": nil, "kubectl": nil, "systemctl": nil,
}

// valued are options of them before the first argument that have a value of their own.
var valued = []string{"-C", "-c", "--git-dir", "--work-tree", "--prefix"}

// unstageable returns why a program cannot do its work where calls are staged, with the network of the host or without.
func unstageable(network bool) func(permit.Command) string {
	return func(c permit.Command) string {
		if slices.Contains(gain, c.Name) {
			return c.Name + " gets no privileges where a call is staged, so it cannot be staged"
		}
		verbs, ok := reach[c.Name]
		if !ok || network {
			return ""
		}
		verb := ""
		for i := 0; i < len(c.Args) && verb == ""; i++ {
			switch arg := c.Args[i]; {
			case slices.Contains(valued, arg):
				i++
			case !strings.HasPrefix(arg, "-"):
				verb = arg
			}
		}
		if verbs != nil && !slices.Contains(verbs, verb) {
			return ""
		}
		name := c.Name
		if verbs != nil {
			name += " " + verb
		}
		return name + " needs the network or a service, which programs of a staged call do not reach, so it cannot be staged"
	}
}

// caches are the folders in the home folder that builds write to, and whose changes no person needs to see.
func caches() (all []string) {
	if dir, err := os.UserCacheDir(); err == nil {
		all = append(all, dir)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return all
	}
	for _, name := range []string{"go", ".npm", ".cargo", ".rustup", ".m2", ".gradle", ".local/share/pnpm"} {
		all = append(all, filepath.Join(home, name))
	}
	return all
}

func (a *App) sessionLives(id string) (found bool) {
	if a.table == nil {
		return true
	}
	a.table.All(func(one *session.Session) { found = found || one.ID == id && !one.Ended() })
	return found
}

// stager implements dispatch.Stager.
type stager struct{ tasks *stage.Manager }

func who(c tool.Caller) stage.Who {
	return stage.Who{
		Principal: c.Principal, Context: c.Context, Client: c.Client, Session: cmp.Or(c.Session, c.Connection),
	}
}

func (s stager) Begin(c tool.Caller) (string, error) { return s.tasks.Begin(who(c)) }
func (s stager) Current(c tool.Caller) string        { return s.tasks.Current(who(c)) }

// environment returns the variables of a caller's context. Which secrets a task gets is recorded in the ledger.
func (a *App) environment(c tool.Caller) (contextstore.Environment, error) {
	env, err := a.contexts.Environment(c)
	if err != nil || a.stage == nil || len(env.Secret) == 0 {
		return env, err
	}
	task := a.stage.Current(who(c))
	if task == "" {
		return env, nil
	}
	var names []string
	for variable, value := range a.contexts.Variables(c.Context) {
		if _, is := env.Secret[variable]; is {
			of, _ := secret.Names(value)
			names = append(names, of...)
		}
	}
	a.publishSecrets(c, task, names)
	return env, nil
}

// publishSecrets records in the ledger which secrets programs of a task get.
func (a *App) publishSecrets(c tool.Caller, task string, names []string) {
	slices.Sort(names)
	a.publish("secret.used", struct {
		Principal string   `json:"principal"`
		Context   string   `json:"context"`
		Session   string   `json:"session,omitempty"`
		Task      string   `json:"task"`
		Names     []string `json:"names"`
	}{c.Principal, c.Context, c.Session, task, slices.Compact(names)})
}

// enterTask gives a call the view of its task. It runs after the folders of the call were narrowed.
func (a *App) enterTask(c *tool.Call, changes bool) (done func(), err error) {
	set, ok := c.Roots.(*roots.Set)
	if !ok {
		return func() {}, nil // it has no folders
	}
	folders := set.Reals()
	if all := a.contexts.RootsOf(c.Caller); all != nil {
		folders = append(folders, a.stageable(all)...)
	} else if !a.opts.AnyFolder {
		folders = append(folders, a.stageable(a.roots)...)
	}
	v, err := a.stage.Enter(c.Task, folders, changes)
	if err != nil {
		return nil, err
	}
	view, err := set.In(v, changes)
	if err != nil {
		v.Leave(false)
		return nil, err
	}
	c.Roots = view
	return func() {
		if err := view.Close(); err != nil {
			a.log.Error("the folders of a call could not be closed", "task", c.Task, "err", err)
		}
		if err := v.Leave(changes); err != nil {
			a.log.Error("the changes of a task could not be recorded", "task", c.Task, "err", err)
		}
	}, nil
}

// stageable returns those of the folders of a context that can be staged.
func (a *App) stageable(of tool.Roots) []string {
	set, ok := of.(*roots.Set)
	if !ok {
		return nil
	}
	return slices.DeleteFunc(set.Reals(), func(f string) bool { return a.stage.CannotStage(f) != "" })
}
