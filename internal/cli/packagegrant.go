package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gatehouse/internal/packages"
)

// grantFlags are the flags that say what a package may use.
type grantFlags struct {
	folders, hosts, sockets, devices []string
	memory, disk                     string
	processes                        int
	trust                            bool
}

func (g *grantFlags) registerGrants(f *pflag.FlagSet) {
	f.StringArrayVar(&g.folders, "allow-folder", nil,
		"folder or file of this machine that it may read and write, or `PATH:ro` to read alone, or PATH:roots for "+
			"those of a client's roots that are in PATH; can be repeated")
	f.StringArrayVar(&g.hosts, "allow-host", nil,
		"what it may connect to, `HOST[:PORT]`; without a port 80 and 443; can be repeated")
	f.StringArrayVar(&g.sockets, "allow-socket", nil, "Unix socket that it may use, `PATH`; can be repeated")
	f.StringArrayVar(&g.devices, "allow-device", nil, "device that it may use, `/dev/NAME`; can be repeated")
	f.StringVar(&g.memory, "memory", "", "memory of one instance, such as 512M or 4G (default: 2G)")
	f.StringVar(&g.disk, "disk", "", "size of its own files, such as 512M or 10G (default: 4G)")
	f.IntVar(&g.processes, "processes", 0, "processes and threads of one instance (default: 512)")
}

func (g *grantFlags) registerTrust(f *pflag.FlagSet) {
	f.BoolVar(&g.trust, "trust", false, "run it with all rights of this host's user, in no sandbox")
}

// grants returns what the flags say, with absolute paths.
func (g *grantFlags) grants() (out packages.Grants, err error) {
	for _, text := range g.folders {
		path, readOnly := strings.CutSuffix(text, ":ro")
		if path, err = filepath.Abs(path); err != nil {
			return out, err
		}
		if readOnly {
			path += ":ro"
		}
		out.Folders = append(out.Folders, path)
	}
	for _, path := range g.sockets {
		if path, err = filepath.Abs(path); err != nil {
			return out, err
		}
		out.Sockets = append(out.Sockets, path)
	}
	out.Hosts, out.Devices, out.Processes = g.hosts, g.devices, g.processes
	for _, size := range []struct {
		flag, text string
		to         *int
	}{{"memory", g.memory, &out.Memory}, {"disk", g.disk, &out.Disk}} {
		if size.text == "" {
			continue
		}
		if *size.to, err = packages.ParseMiB(size.text); err != nil {
			return out, usagef("--%s: %v", size.flag, err)
		}
	}
	return out, nil
}

// grantedPackage is the result of package_grant.
type grantedPackage struct {
	Confinement string   `json:"confinement"`
	May         []string `json:"may"`
}

func packageGrant(w Environment) *cobra.Command {
	var g grantFlags
	var confine bool
	c := regrant(w, &g, func(id string) (map[string]any, error) {
		if g.trust && confine {
			return nil, usagef("--trust and --confine contradict each other")
		}
		add, err := g.grants()
		in := map[string]any{"id": id, "add": add}
		if g.trust {
			in["confinement"] = packages.Trusted
		} else if confine {
			in["confinement"] = packages.Sandboxed
		}
		return in, err
	})
	c.Use, c.Short = "grant NAME", "Let a package use folders, hosts and more"
	c.Long = `Let a package use folders, hosts, sockets and devices of this machine, or raise its
limits. Without flags it prints what the package may use. A server that runs is
stopped, and starts again with what it may use then.`
	c.Example = `  gatehouse package grant notes --allow-folder ~/notes --allow-host api.example.com
  gatehouse package grant notes --allow-folder /srv/data:ro --memory 4G --yes
  gatehouse package grant notes --trust`
	g.registerTrust(c.Flags())
	c.Flags().BoolVar(&confine, "confine", false, "run it in a sandbox")
	return c
}

func packageRevoke(w Environment) *cobra.Command {
	var g grantFlags
	c := regrant(w, &g, func(id string) (map[string]any, error) {
		remove, err := g.grants()
		if err == nil && remove.IsZero() {
			err = usagef("nothing to take away: name it as it was granted, such as --allow-host api.example.com")
		}
		return map[string]any{"id": id, "remove": remove}, err
	})
	c.Use, c.Short = "revoke NAME", "Take away what a package was granted"
	c.Long = `Take away what a package was granted, named as it was granted. A limit that is named
becomes the default again. A server that runs is stopped, and starts again without.`
	c.Example = `  gatehouse package revoke notes --allow-folder ~/notes
  gatehouse package revoke notes --allow-host api.example.com --memory 4G`
	return c
}

// regrant makes a command that calls package_grant.
func regrant(w Environment, g *grantFlags, input func(id string) (map[string]any, error)) *cobra.Command {
	var p packageFlags
	c := &cobra.Command{
		Args: exactly("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			in, err := input(args[0])
			if err != nil {
				return err
			}
			return callOnce(&p, c, w, "package_grant", in, func(out grantedPackage) error {
				for _, line := range out.May {
					fmt.Fprintln(w.Out, printable(line))
				}
				return nil
			})
		},
	}
	p.registerFlags(c.Flags())
	p.addYes(c.Flags())
	g.registerGrants(c.Flags())
	c.ValidArgsFunction = p.packageNames(w)
	return c
}
