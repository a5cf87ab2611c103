package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/config"
)

// clusterSettings are what gatehouse cluster join writes to the settings, and leave removes.
var clusterSettings = []string{"cluster.name", "cluster.listen", "cluster.join", "cluster.token_file"}

func clusterJoin(w Environment) *cobra.Command {
	var set config.Cluster
	var aside bool
	c := &cobra.Command{
		Use:   "join HOST:PORT...",
		Short: "Make this machine a node of a cluster from its next start on",
		Long: `Make this machine a new node of the cluster that has nodes at these addresses. The
command checks the token and that the machine is no node yet, and writes the cluster to
the settings; the host joins when it is started with gatehouse serve --http. Stop it
before. A node gets users, tokens, contexts, approvals and secrets from its cluster. If
the machine has some of its own, as one that has left a cluster does, the command names
their files and changes nothing, unless --set-aside moves them away. Packages that the
cluster does not have must be removed before.

A token is made by gatehouse cluster join-token on the machine of any node. Without
one a node can join on loopback alone.`,
		Example: `  gatehouse cluster join 10.0.0.1:7000 --cluster work --cluster-listen 10.0.0.2:7000 --join-token-file token
  gatehouse cluster join 10.0.0.1:7000 --cluster work --cluster-listen 10.0.0.2:7000 --join-token-file token --set-aside`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			with := l.Config.Cluster
			with.Join = args
			if set.Name != "" {
				with.Name = set.Name
			}
			if set.Listen != "" {
				with.Listen = set.Listen
			}
			if set.TokenFile != "" {
				if with.TokenFile, err = filepath.Abs(set.TokenFile); err != nil {
					return err
				}
			}
			if with.Name == "" || with.Listen == "" {
				return usagef("%s requires --cluster NAME and --cluster-listen HOST:PORT", c.CommandPath())
			}
			if d, err := findDaemon(c.Context(), l.Config); err == nil && d.runs {
				return errors.New("the host of this machine runs: stop it with gatehouse daemon stop, then join")
			}
			if err := app.CheckJoin(c.Context(), l.Folders, with); err != nil {
				return err
			}
			folder, err := app.SetAside(l.Folders, l.Config.Secrets.KeyFile, aside)
			if folder != "" {
				fmt.Fprintf(w.Out, "What this machine had of its own is in %s.\n", folder)
			}
			if err != nil {
				return err
			}
			if err := writeCluster(w, l, with); err != nil {
				return err
			}
			reportUnreachable(w, with.Join)
			fmt.Fprintf(w.Out, "This machine joins cluster %s when it is started: gatehouse serve --http\n", with.Name)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&set.Name, "cluster", "", "`name` of the cluster")
	f.StringVar(&set.Listen, "cluster-listen", "", "`address` at which other nodes reach this one, host:port")
	f.StringVar(&set.TokenFile, "join-token-file", "", "`file` of gatehouse cluster join-token")
	f.BoolVar(&aside, "set-aside", false, "move away the users, contexts, approvals and secrets that this machine has")
	return c
}

// writeCluster writes which cluster this machine is a node of to the settings file.
func writeCluster(w Environment, l *config.Loaded, c config.Cluster) error {
	join, err := json.Marshal(c.Join)
	if err != nil {
		return err
	}
	values := []json.RawMessage{jsonText(c.Name), jsonText(c.Listen), join, nil}
	if c.TokenFile != "" {
		values[3] = jsonText(c.TokenFile)
	}
	return replaceCluster(w, l, values)
}

// replaceCluster writes the settings of clusterSettings; a nil value removes one.
func replaceCluster(w Environment, l *config.Loaded, values []json.RawMessage) error {
	file := l.File
	if file == "" {
		file = filepath.Join(l.Folders.Config, config.FileName)
	}
	e := settingsEditor{getenv: w.Getenv}
	return e.edit(file, func(text []byte) ([]byte, error) {
		for i, path := range clusterSettings {
			next, err := config.Edit(text, path, values[i])
			if err != nil {
				return nil, err
			}
			text = next
		}
		return text, nil
	})
}

func jsonText(s string) json.RawMessage {
	text, _ := json.Marshal(s) // a string cannot fail
	return text
}

// reportUnreachable says which addresses of nodes cannot be reached now. They may be started later.
func reportUnreachable(w Environment, addresses []string) {
	for _, address := range addresses {
		conn, err := net.DialTimeout("tcp", address, 3*time.Second)
		if err != nil {
			fmt.Fprintf(w.Err, "[gatehouse] No node answers at %s now: %v\n", address, err)
			continue
		}
		conn.Close()
	}
}
