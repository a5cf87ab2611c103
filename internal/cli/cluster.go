package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gatehouse/internal/app"
	"gatehouse/internal/cluster"
)

func clusterCommand(w Environment) *cobra.Command {
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Show and change the nodes of a cluster, and back it up",
		Long: `Show the nodes of a cluster, let others join, drain, leave and be removed, back it up
and restore it. A host is a node if it is served with --cluster; the commands are for
the node that runs on this machine.`,
		Example: `  gatehouse cluster status
  gatehouse cluster join-token > token
  gatehouse cluster join 10.0.0.1:7000 --cluster work --cluster-listen 10.0.0.2:7000 --join-token-file token
  gatehouse cluster drain --wait 10m
  gatehouse cluster remove k3jq5ywa2m`,
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(clusterStatus(w), clusterJoinToken(w), clusterJoin(w), clusterDrain(w), clusterLeave(w), clusterRemove(w),
		clusterBackup(w), clusterRestore(w))
	return c
}

func clusterStatus(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the nodes",
		Long: `List the nodes with their load (running jobs and packages), what each has (labels, of
the setting cluster.labels and of its machine) and the packages that run there. A
package with labels runs on a node that has them all. PATH is how calls of the first
node, which was asked, go to each other one: direct between their hosts, or over nats;
why they do not go directly is below, and also which nodes are of an older version that
the key of the secrets waits for. Before the cluster serves the command says what
it waits for.`,
		Example: `  gatehouse cluster status
  GATEHOUSE_CLUSTER_LABELS=zone=a,disk=fast gatehouse serve --http --cluster work --cluster-listen 10.0.0.1:7000
  gatehouse package add files npm:@modelcontextprotocol/server-filesystem --label zone=a`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			raw, err := cluster.Visit(c.Context(), app.ClusterFolder(l.Folders.Data), app.StatusTopic, nil)
			if errors.Is(err, cluster.ErrNotRun) {
				why := "a cluster waits until three nodes are there, and later until most of its nodes are"
				if said, err := cluster.Waits(c.Context(), app.ClusterFolder(l.Folders.Data)); err == nil {
					why = "the node of this machine is " + said
				}
				fmt.Fprintln(w.Err, "[gatehouse] Let the others join with gatehouse cluster join; the log of each says what it "+
					"waits for")
				return errors.New("no node serves yet: " + why)
			}
			if err != nil {
				return err
			}
			var nodes []app.NodeStatus
			if err := json.Unmarshal(raw, &nodes); err != nil {
				return err
			}
			return printNodes(w.Out, nodes)
		},
	}
}

// printNodes prints the nodes, of which the first was asked, and why calls to some go over NATS.
func printNodes(to io.Writer, nodes []app.NodeStatus) error {
	out := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "NODE\tMACHINE\tSTATE\tPATH\tVERSION\tCLUSTER ADDRESS\tCLIENTS\tSINCE\tLOAD\tLABELS\tPACKAGES")
	for i, n := range nodes {
		state, path := "alive", cmp.Or(n.Path, "-")
		switch {
		case !n.Alive:
			state = "silent"
		case n.Draining:
			state = "draining"
		}
		if i == 0 {
			path = "asked"
		}
		fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%.0f\t%s\t%s\n", n.ID, n.Host, state, path, n.Version,
			n.Cluster, n.Address, n.Started.Format(time.RFC3339), n.Load, strings.Join(n.Labels, ","),
			strings.Join(n.Packages, ","))
	}
	if err := out.Flush(); err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Why != "" {
			fmt.Fprintf(to, "Calls from %s to %s go over NATS and take longer: %s\n", nodes[0].ID, n.ID, n.Why)
		}
		if err := app.WaitsForUpgrade(&n.Peer); err != nil {
			fmt.Fprintln(to, "At present", err)
		}
	}
	return nil
}

func clusterJoinToken(w Environment) *cobra.Command {
	var valid time.Duration
	c := &cobra.Command{
		Use:   "join-token",
		Short: "Print a token with which a node can join",
		Long: `Print a token with which a node can join the cluster of this machine's node until
it expires. Give it to the new node in a file, with the --join-token-file of gatehouse
cluster join. The node that joins gets the key of the cluster's certificates, so keep
the token secret.`,
		Example: `  gatehouse cluster join-token > token
  gatehouse cluster join-token --valid 10m > token`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if valid <= 0 || valid > 7*24*time.Hour {
				return usagef("--valid %v: expected more than 0 and at most a week", valid)
			}
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			dir := app.ClusterFolder(l.Folders.Data)
			if _, err := cluster.IDOf(dir); err != nil {
				return fmt.Errorf("%w; start one with gatehouse serve --cluster", err)
			}
			authority, err := cluster.OpenAuthority(dir)
			if err != nil {
				return err
			}
			token, err := authority.JoinToken(valid)
			if err == nil {
				_, err = w.Out.Write(token)
			}
			return err
		},
	}
	c.Flags().DurationVar(&valid, "valid", time.Hour, "how long a node can join with it")
	return c
}

func clusterDrain(w Environment) *cobra.Command {
	var wait time.Duration
	var off bool
	c := &cobra.Command{
		Use:   "drain",
		Short: "Give this machine's sessions to other nodes before it is stopped",
		Long: `Give the sessions of this machine's node to other nodes, so that it can be stopped
without a client that notices. The node opens no more sessions, its /ready answers
503, and a session moves once none of its calls runs; a package that runs here moves
to a node that fits. The command returns when no session is left and no job and no call
of such a package runs, or fails after --wait. The node drains until it is
started again, or until --off.`,
		Example: `  gatehouse cluster drain --wait 10m
  gatehouse cluster drain --off`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(c.Context(), wait, fmt.Errorf("not empty within %v", wait))
			defer cancel()
			var last app.DrainState
			most, answered := 0, false
			err = app.Drain(ctx, l.Folders, !off, func(s app.DrainState) {
				last, most, answered = s, max(most, s.Sessions), true
			})
			switch {
			case err != nil && !answered:
				return err
			case err != nil:
				return fmt.Errorf("%d sessions, %d jobs and %d packages are left: %w", last.Sessions, last.Jobs,
					last.Packages, err)
			case off:
				fmt.Fprintln(w.Out, "This node takes new sessions.")
			default:
				fmt.Fprintf(w.Out, "%d sessions have moved, and no job runs. Stop this node now.\n", most)
			}
			return nil
		},
	}
	c.Flags().DurationVar(&wait, "wait", 5*time.Minute, "how long sessions and jobs may take")
	c.Flags().BoolVar(&off, "off", false, "take new sessions again")
	return c
}

func clusterRemove(w Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "remove NODE",
		Short: "Remove a node that has died from the members",
		Long: `Remove a node that has died, or that drains, from the members of the cluster. It does
not count any more where most nodes must agree, its copies of records are made on other
nodes, and its certificate is refused. A node that runs must drain first; then it stops.
Three members must remain, so with three let another node join before. A removed node
joins again as a new one, after gatehouse cluster leave on its machine.`,
		Example: `  gatehouse cluster remove k3jq5ywa2m`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			if err := app.RemoveMember(c.Context(), l.Folders, args[0]); err != nil {
				return err
			}
			fmt.Fprintf(w.Out, "Node %s is no member any more. Its copies of records are made on other nodes.\n", args[0])
			return nil
		},
	}
}

func clusterLeave(w Environment) *cobra.Command {
	var alone bool
	c := &cobra.Command{
		Use:   "leave",
		Short: "Make this machine a host without a cluster",
		Long: `Make this machine a host without a cluster, which keeps the users, tokens,
contexts, approvals, secrets and packages that its node has now. Stop the host before. The other nodes
remove it from the members, of which three must remain: otherwise the command refuses
at once. With --alone they are not told: that suits the last nodes of a cluster that
ends, and a node that they have removed before. If the settings file has the cluster,
it is removed there. gatehouse cluster join --set-aside makes the machine a new node.`,
		Example: `  gatehouse cluster leave
  gatehouse cluster leave --alone`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := readSettings(w)
			if err != nil {
				return err
			}
			old, err := app.LeaveCluster(c.Context(), l.Folders, l.Config.Cluster.Program, alone)
			if err != nil {
				return err
			}
			fmt.Fprintf(w.Out, "This machine is no node any more. What the node had besides is in %s; remove it.\n", old)
			if l.File == "" {
				return nil
			}
			return replaceCluster(w, l, make([]json.RawMessage, len(clusterSettings)))
		},
	}
	c.Flags().BoolVar(&alone, "alone", false, "do not tell the other nodes")
	return c
}
